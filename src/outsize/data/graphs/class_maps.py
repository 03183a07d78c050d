"""Labels in a JSON object from node to class, or to a list of 0 and 1, one for each class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.graphs.graph import NodeLabels
from outsize.data.graphs.json_stream import JsonStream
from outsize.data.graphs.labels import drop_small_classes
from outsize.errors import DataError

_MAX_CLASSES = 1 << 20


def read_class_map(
    path: Path, number_of: Callable[[str], int | None], num_nodes: int, min_class_size: int
) -> tuple[NodeLabels, NDArray[np.bool_]]:
    """Read the labels of nodes of type `node`.

    Args:
        path: The file.
        number_of: The number of a node by its name; `None` for one that is not in the graph.
        num_nodes: Number of nodes.
        min_class_size: Nodes of smaller classes are unlabelled.

    Returns:
        The labels, and a mask of the nodes that have one.
    """
    nodes: list[int] = []
    classes: list[int] = []
    rows, width = bytearray(), 0
    for name, value in JsonStream(path).members():
        node = number_of(name)
        if node is None:
            continue
        if isinstance(value, list):
            if classes or (width and len(value) != width) or not value:
                raise DataError(f"{path}: the label of {name!r:.60} has another length than others")
            width = len(value)
            rows += _row(path, name, value)
        else:
            if width or not isinstance(value, int | float) or value != int(value) or (
                not 0 <= value < _MAX_CLASSES
            ):  # fmt: skip
                raise DataError(
                    f"{path}: the label of {name!r:.60} is not the number of a class: {value!r:.60}"
                )
            classes.append(int(value))
        nodes.append(node)
    if not nodes:
        raise DataError(f"{path}: no node has a label")
    is_labelled = np.zeros(num_nodes, bool)
    if width:
        matrix = np.zeros((num_nodes, width), np.uint8)
        matrix[nodes] = np.frombuffer(rows, np.uint8).reshape(-1, width)
        is_labelled[nodes] = True
        return NodeLabels("node", matrix, tuple(map(str, range(width)))), is_labelled
    numbers = np.full(num_nodes, -1)
    numbers[nodes] = classes
    names = tuple(map(str, range(max(classes) + 1)))
    labels = drop_small_classes(NodeLabels("node", numbers, names), min_class_size, str(path))
    return labels, labels.classes >= 0


def _row(path: Path, name: str, value: list[Any]) -> bytes:
    try:
        row = bytes(map(int, value))
    except (TypeError, ValueError):
        row = b"\2"
    if row.strip(b"\0\1"):
        raise DataError(f"{path}: the label of {name!r:.60} is not a list of 0 and 1")
    return row
