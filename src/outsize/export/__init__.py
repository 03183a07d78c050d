"""Exporting trained models to folders that load without the training code, and loading them.

`model.safetensors` holds the dense weights and the tables, in their compressed form, under the
names they have in the loaded module; clocks, optimizer state and caches are not exported.
`vocabularies.safetensors` holds what turns raw values into ids. `config.json` holds what is needed
to build the module, and `card.json` and `README.md` describe it. Loading does not import runs,
data, stores or optimizers; the first raw rows import the encoding of data.
"""

from outsize.export.format import require_free
from outsize.export.load import load_exported
from outsize.export.onnx_file import write_onnx
from outsize.export.quantization import Quantization
from outsize.export.tracing import trace
from outsize.export.write import write_exported

__all__ = [
    "Quantization",
    "load_exported",
    "require_free",
    "trace",
    "write_exported",
    "write_onnx",
]
