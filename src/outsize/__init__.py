"""Train embedding models that outsize your memory.

Three published systems in one library: compressed tables (CCE), row caches with bounded staleness
(HET), and negative caches for retrieval. Names are imported when they are first used, so that
`import outsize` costs little more than `import torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outsize.version import __version__

if TYPE_CHECKING:
    from outsize import models as models
    from outsize.collection import EmbeddingCollection as EmbeddingCollection
    from outsize.contracts import Bag as Bag
    from outsize.contracts import Codes as Codes
    from outsize.contracts import EmbeddingTable as EmbeddingTable
    from outsize.contracts import RowStore as RowStore
    from outsize.errors import OutsizeError as OutsizeError
    from outsize.export import load_exported as load_exported
    from outsize.negatives import NEGATIVES as NEGATIVES
    from outsize.negatives import NegativeCache as NegativeCache
    from outsize.negatives import NegativeCacheLoss as NegativeCacheLoss
    from outsize.negatives import ShardedNegativeCache as ShardedNegativeCache
    from outsize.negatives import cached_softmax as cached_softmax
    from outsize.optimizers import ROW_OPTIMIZERS as ROW_OPTIMIZERS
    from outsize.optimizers import RowAdagrad as RowAdagrad
    from outsize.optimizers import RowAdam as RowAdam
    from outsize.optimizers import RowFullAdagrad as RowFullAdagrad
    from outsize.optimizers import RowSGD as RowSGD
    from outsize.row_files import load_rows as load_rows
    from outsize.row_files import save_rows as save_rows
    from outsize.spec import FeatureSpec as FeatureSpec
    from outsize.spec import Init as Init
    from outsize.spec import MemoryUse as MemoryUse
    from outsize.spec import TableSpec as TableSpec
    from outsize.stores import STORES as STORES
    from outsize.stores import CachedStore as CachedStore
    from outsize.stores import LocalStore as LocalStore
    from outsize.stores import ShardedStore as ShardedStore
    from outsize.tables import TABLES as TABLES
    from outsize.tables import FullTable as FullTable
    from outsize.tables import build_table as build_table
    from outsize.tables import build_tables as build_tables
    from outsize.tables import quantize as quantize
    from outsize.training import train as train

_HOMES = {
    "Bag": "contracts",
    "Codes": "contracts",
    "CachedStore": "stores",
    "EmbeddingCollection": "collection",
    "EmbeddingTable": "contracts",
    "FeatureSpec": "spec",
    "FullTable": "tables",
    "Init": "spec",
    "LocalStore": "stores",
    "MemoryUse": "spec",
    "NEGATIVES": "negatives",
    "NegativeCache": "negatives",
    "NegativeCacheLoss": "negatives",
    "OutsizeError": "errors",
    "ROW_OPTIMIZERS": "optimizers",
    "RowAdagrad": "optimizers",
    "RowAdam": "optimizers",
    "RowFullAdagrad": "optimizers",
    "RowSGD": "optimizers",
    "RowStore": "contracts",
    "STORES": "stores",
    "ShardedNegativeCache": "negatives",
    "ShardedStore": "stores",
    "TABLES": "tables",
    "TableSpec": "spec",
    "build_table": "tables",
    "build_tables": "tables",
    "cached_softmax": "negatives",
    "load_exported": "export",
    "load_rows": "row_files",
    "quantize": "tables",
    "save_rows": "row_files",
    "train": "training",
}
_ROOMS = ("data", "metrics", "models", "negatives", "tables", "stores", "training")

__all__ = [*_HOMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"outsize.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"outsize.{name}")
    else:
        raise AttributeError(f"module 'outsize' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
