"""Labels of nodes, and their splits into training, validation and test sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import CodedText
from outsize.data.encoding.splits import SplitConfig
from outsize.data.graphs.graph import IdBags, NodeLabels
from outsize.errors import DataError

_MAX_MULTI_LABELS = 1 << 33


def single_label(node_type: str, text: CodedText, min_class_size: int, origin: str) -> NodeLabels:
    """One class per node, from the values of a column; classes are in order of their names.

    Args:
        node_type: The type of the nodes.
        text: The value of each node.
        min_class_size: Nodes of smaller classes are unlabelled.
        origin: The file, for error messages.
    """
    names = text.values.to_pylist()
    sizes = np.bincount(text.codes[text.codes >= 0], minlength=len(names))
    large, number = _large_classes(in_order(names), sizes, min_class_size, origin)
    return NodeLabels(node_type, number[text.codes], tuple(names[i] for i in large))


def multi_label(
    node_type: str, bags: IdBags, min_class_size: int, origin: str
) -> tuple[NodeLabels, NDArray[np.bool_]]:
    """Any number of classes per node, and a mask of the nodes that have a label."""
    names = bags.names.to_pylist()
    sizes = np.bincount(bags.values, minlength=len(names))
    large, number = _large_classes(in_order(names), sizes, min_class_size, origin)
    owners = np.repeat(np.arange(len(bags.starts) - 1), np.diff(bags.starts))
    found = number[bags.values]
    classes = class_matrix(owners[found >= 0], found[found >= 0], len(bags.starts) - 1, len(large))
    is_labelled: NDArray[np.bool_] = np.asarray(classes.any(axis=1))
    return NodeLabels(node_type, classes, tuple(names[i] for i in large)), is_labelled


def drop_small_classes(labels: NodeLabels, min_class_size: int, origin: str) -> NodeLabels:
    """One class per node, without classes that have no nodes, or fewer than asked for."""
    found = labels.classes >= 0
    sizes = np.bincount(labels.classes[found], minlength=len(labels.class_names))
    large, number = _large_classes(range(len(sizes)), sizes, min_class_size, origin)
    names = tuple(labels.class_names[i] for i in large)
    return NodeLabels(labels.node_type, number[labels.classes], names)


def class_matrix(
    nodes: NDArray[np.int64], classes: NDArray[np.int64], num_nodes: int, num_classes: int
) -> NDArray[np.uint8]:
    """`(num_nodes, num_classes)` of 0 and 1 from pairs of nodes and classes."""
    if num_nodes * num_classes > _MAX_MULTI_LABELS:
        raise DataError(f"{num_classes:,} classes of {num_nodes:,} nodes are too many")
    matrix = np.zeros((num_nodes, num_classes), np.uint8)
    matrix[nodes, classes] = 1
    return matrix


def split_labelled(
    split: SplitConfig,
    is_labelled: NDArray[np.bool_],
    texts: Mapping[str, CodedText],
    numbers: Mapping[str, NDArray[np.float64]],
    origin: str,
) -> dict[Split, NDArray[np.int64]]:
    """Split the labelled nodes.

    Args:
        split: How.
        is_labelled: Which nodes have a label.
        texts: The text columns that the split needs.
        numbers: The numeric columns that it needs.
        origin: The file, for error messages.
    """
    nodes = np.flatnonzero(is_labelled)
    rows = Rows(
        0, 0, np.ones(len(is_labelled), np.uint8), dict(numbers), dict(texts), 0
    ).take(is_labelled)  # fmt: skip
    splitter = split.build()
    splitter.observe(rows)
    splitter.finish()
    assigned = splitter.assign(rows)
    found = {name: nodes[assigned == number] for number, name in enumerate(SPLITS)}
    return labelled_splits(found, is_labelled, origin)


def labelled_splits(
    splits: Mapping[Split, NDArray[np.int64]], is_labelled: NDArray[np.bool_], origin: str
) -> dict[Split, NDArray[np.int64]]:
    """The labelled nodes of each split; raises a `DataError` if a split has none."""
    labelled = {split: nodes[is_labelled[nodes]] for split, nodes in splits.items()}
    for split in SPLITS:
        if not len(labelled[split]):
            raise DataError(
                f"{origin}: no labelled node is in the {split} split, of {is_labelled.sum():,} "
                "labelled nodes: change the split, or add labels"
            )
    return labelled


def _large_classes(
    order: Iterable[int], sizes: NDArray[np.int64], min_class_size: int, origin: str
) -> tuple[list[int], NDArray[np.int64]]:
    """The classes with enough nodes, in order, and the new number of each; −1 for the others."""
    large = [i for i in order if sizes[i] >= max(1, min_class_size)]
    if not large and min_class_size > 1:
        raise DataError(
            f"{origin}: no class has min_class_size = {min_class_size:,} nodes: lower it"
        )
    if not large:
        raise DataError(f"{origin}: no node has a label")
    number = np.full(len(sizes) + 1, -1)
    number[large] = np.arange(len(large))
    return large, number


def in_order(names: Sequence[str]) -> list[int]:
    """The order of names: as numbers if all are integers, else as text."""

    def is_integer(name: str) -> bool:
        return name.isascii() and name.lstrip("-").isdigit()

    key: Any = int if all(map(is_integer, names)) else str
    return sorted(range(len(names)), key=lambda i: (key(names[i]), names[i]))
