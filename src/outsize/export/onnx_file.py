"""Click models as ONNX files, which other runtimes read without torch.

The file has one input per feature, by its name, and `dense` if the model has dense features. A
feature with bags of ids has two: its values by its name, and `<name>.offsets`. The output is
`logits`. Compressed tables stay compressed.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from outsize.errors import ConfigError, ExportError, WriteError
from outsize.export.tracing import bag_features, trace
from outsize.files import whole_file
from outsize.models import ClickModel

OPSET = 18
ONNX = "model.onnx"
_NEEDED = ("onnx", "onnxscript")
_MAX_BYTES = (1 << 31) - (1 << 20)
"""An ONNX file is one message of at most 2 GiB."""


def write_onnx(model: ClickModel, path: str | Path, bags: Sequence[str] = ()) -> dict[str, Any]:
    """Write a click model that `outsize.load_exported` returned as an ONNX file.

    The batch size is free. The logits of onnxruntime on the CPU are the model's within 1e-5.

    Args:
        model: The model.
        path: The file to write; it must not exist.
        bags: Names of features that have bags of ids, as for `trace`.

    Returns:
        What was written: path, opset, bytes, and the names of inputs and outputs.

    Raises:
        ConfigError: The file exists, the extra `onnx` is not installed, or the model cannot be
            traced.
        ExportError: The model cannot be expressed in ONNX, or the file cannot be written.
    """
    path = Path(path)
    require_onnx()
    if path.exists():
        raise ConfigError(f"{path} exists: choose another file")
    _require_small(model)
    program = trace(model, bags)
    inputs = _input_names(model, bags)
    with _quiet():
        try:
            written = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=["dense", *inputs],
                output_names=["logits"],
                verbose=False,
            )
        except Exception as error:  # torch raises many kinds
            reason = str(error).strip().split("\n")[0][:200]
            raise ExportError(f"this model cannot be written as ONNX: {reason}") from error
    assert written is not None
    message = written.model_proto
    if model.num_dense == 0:
        _remove_input(message, "dense")
    _name_batch(message)
    _remove_notes(message)
    _merge_constants(message.graph)
    try:
        with whole_file(path) as file:
            file.write(message.SerializeToString())
    except WriteError as error:
        raise ExportError(str(error)) from error
    return {
        "out": str(path),
        "opset": OPSET,
        "bytes": path.stat().st_size,
        "inputs": [given.name for given in message.graph.input],
        "outputs": ["logits"],
    }


def require_onnx() -> None:
    """Raise a `ConfigError` if the packages that write ONNX files are not installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"writing ONNX needs {' and '.join(missing)}: pip install 'outsize[onnx]'"
        )


def _input_names(model: ClickModel, bags: Sequence[str]) -> list[str]:
    with_bags = bag_features(model, bags)
    names = []
    for feature in model.embeddings.features:
        names.append(feature.name)
        if feature.name in with_bags:
            names.append(f"{feature.name}.offsets")
    for name in names:
        if name in ("dense", "logits") or names.count(name) > 1:
            raise ConfigError(f"the feature {name!r} has the name of another input: rename it")
    return names


def _require_small(model: ClickModel) -> None:
    state = model.state_dict().values()
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state)
    if num_bytes > _MAX_BYTES:
        raise ConfigError(
            f"the weights have {num_bytes:,} bytes, but an ONNX file has {_MAX_BYTES:,} at most: "
            "train with compressed tables"
        )


def _remove_input(message: Any, name: str) -> None:
    """Remove an input of no columns: rows are counted by the features."""
    used = {own for node in message.graph.node for own in node.input}
    found = [given for given in message.graph.input if given.name == name]
    if name not in used:
        for given in found:
            message.graph.input.remove(given)


def _name_batch(message: Any) -> None:
    """Name the first size of inputs and outputs: values of bags have their own."""
    names = {given.name for given in message.graph.input}
    for given in [*message.graph.input, *message.graph.output]:
        first = given.type.tensor_type.shape.dim[0]
        is_values = f"{given.name}.offsets" in names
        first.dim_param = f"num_{given.name}" if is_values else "batch"
    del message.graph.value_info[:]  # they use the old names; runtimes infer them again


def _remove_notes(message: Any) -> None:
    """Remove the exporter's notes on nodes: lines and paths of the code that was traced."""
    graphs = [message.graph, *message.functions]
    nodes = [node for graph in graphs for node in graph.node]
    values = [*message.graph.input, *message.graph.output, *message.graph.initializer]
    for noted in (message, *graphs, *nodes, *values):
        del noted.metadata_props[:]
        noted.doc_string = ""


def _merge_constants(graph: Any) -> None:
    """Store equal constants once: the exporter has a copy for each place that reads one."""
    names: dict[tuple[Any, ...], str] = {}
    same = {}
    for tensor in list(graph.initializer):
        key = (tensor.data_type, tuple(tensor.dims), tensor.raw_data)
        if not tensor.raw_data or names.setdefault(key, tensor.name) == tensor.name:
            continue
        same[tensor.name] = names[key]
        graph.initializer.remove(tensor)
    for node in _all_nodes(graph):
        for place, name in enumerate(node.input):
            node.input[place] = same.get(name, name)


def _all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph, and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from _all_nodes(inner)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes of the exporter, such as that torchvision is not installed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
