"""From what a reader has found to a graph: edges grouped by target, links held out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.csr import EdgeRules, GroupedEdges, Pairs, group_edges
from outsize.data.graphs.graph import Graph, GraphData, NodeLabels, NodeType, Relation
from outsize.data.graphs.links import HeldOutLinks, LinkSplit
from outsize.data.graphs.stored import links_file, sources_file
from outsize.errors import ConfigError, DataError
from outsize.suggestions import few

REVERSE = "rev_"


@dataclass(frozen=True)
class RawRelation:
    """The edges of a relation as a reader finds them.

    Attributes:
        source: The node type of sources.
        target: The node type of targets.
        chunks: Returns the edges in chunks, the same ones in each call.
        origin: The file, for error messages.
    """

    source: str
    target: str
    chunks: Callable[[], Iterable[Pairs]]
    origin: str


@dataclass(frozen=True)
class RawGraph:
    """A graph as a reader finds it; members are those of `GraphData`."""

    nodes: Mapping[str, NodeType]
    relations: Mapping[str, RawRelation]
    labels: NodeLabels | None = None
    labelled: Mapping[Split, NDArray[np.int64]] = field(default_factory=dict)


def assemble(
    raw: RawGraph, rules: EdgeRules, links: LinkSplit | None, files: ArrayFiles
) -> GraphData:
    """Group the edges of all relations by target, without the links that are held out.

    An undirected relation between two node types gets a second one in the other direction, whose
    name begins with `rev_`.

    Args:
        raw: What a reader has found.
        rules: Which edges to keep.
        links: Edges to hold out.
        files: Where large arrays are made.

    Returns:
        The graph, without a fingerprint.
    """
    link_relation = None if links is None else _link_relation(links, raw.relations)
    relations: dict[str, Relation] = {}
    found: dict[Split, NDArray[np.int64]] = {}
    for name, relation in raw.relations.items():
        same_type = relation.source == relation.target
        chunks = relation.chunks
        held_out = None
        if links is not None and name == link_relation:
            undirected = rules.undirected and same_type
            held_out = HeldOutLinks(relation.chunks, links, undirected=undirected)
            chunks = held_out.training_chunks
        ends = (relation.source, relation.target)
        edges = _group(chunks, ends, relation.origin, raw.nodes, rules, files, len(relations))
        relations[name] = Relation(*ends, edges.starts, edges.sources)
        if held_out is not None:
            found = {
                "train": held_out.training_links(
                    edges, lambda length, dtype: files.new(links_file("train"), length, dtype)
                ),
                **held_out.links(),
            }
        if rules.undirected and not same_type:
            edges = _group(
                _turned(chunks), ends[::-1], relation.origin, raw.nodes, rules, files,
                len(relations),
            )  # fmt: skip
            relations[REVERSE + name] = Relation(*ends[::-1], edges.starts, edges.sources)
    if set(raw.relations) & {REVERSE + name for name in raw.relations}:
        raise ConfigError(f"a relation may not have another's name after {REVERSE!r}: rename one")
    graph = Graph(raw.nodes, relations)
    return GraphData(graph, "", raw.labels, raw.labelled, found, link_relation)


def _group(
    chunks: Callable[[], Iterable[Pairs]],
    ends: tuple[str, ...],
    origin: str,
    nodes: Mapping[str, NodeType],
    rules: EdgeRules,
    files: ArrayFiles,
    number: int,
) -> GroupedEdges:
    source, target = ends

    def new_array(length: int, dtype: Any) -> NDArray[Any]:
        return files.new(sources_file(number), length, dtype)

    try:
        return group_edges(
            chunks, nodes[source].num_nodes, nodes[target].num_nodes, rules,
            same_type=source == target, new_array=new_array,
        )  # fmt: skip
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None


def _turned(chunks: Callable[[], Iterable[Pairs]]) -> Callable[[], Iterator[Pairs]]:
    def turned() -> Iterator[Pairs]:
        for sources, targets in chunks():
            yield targets, sources

    return turned


def _link_relation(links: LinkSplit, relations: Mapping[str, RawRelation]) -> str:
    if not links.relation and len(relations) == 1:
        return next(iter(relations))
    if links.relation not in relations:
        raise ConfigError(
            f"links.relation must be one of {few(list(relations), links.relation)}, but got "
            f"{links.relation!r}"
        )
    return links.relation
