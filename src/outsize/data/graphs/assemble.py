"""From what a reader has found to a graph: edges grouped by target, links held out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import Split
from outsize.data.graphs.arrays import ArrayFiles
from outsize.data.graphs.csr import EdgeRules, GroupedEdges, NewArray, Pairs, group_edges
from outsize.data.graphs.graph import Graph, GraphData, IdBags, NodeLabels, NodeType, Relation
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


def with_bags(raw: RawGraph, names: Sequence[str]) -> RawGraph:
    """The same graph with some relations as attributes: the bag of a node holds its neighbours.

    The bags are those of the labelled nodes if the relation has any, else of its sources. A node
    type without relations is left out.

    Args:
        raw: What a reader has found.
        names: The relations.
    """
    relations, nodes = dict(raw.relations), dict(raw.nodes)
    labelled = None if raw.labels is None else raw.labels.node_type
    for name in names:
        if name not in relations:
            known = few(list(raw.relations), name)
            raise ConfigError(f"bags names {name!r}, but the relations are {known}")
        relation = relations.pop(name)
        if relation.source == relation.target:
            raise ConfigError(f"bags names {name!r}, which joins nodes of one type: leave it out")
        is_turned = relation.target != labelled
        owner, other = (
            (relation.source, relation.target) if is_turned else (relation.target, relation.source)
        )
        edges = _group(
            _turned(relation.chunks) if is_turned else relation.chunks, (other, owner),
            relation.origin, raw.nodes, EdgeRules(), np.empty,
        )  # fmt: skip
        bags = IdBags(
            edges.starts, edges.sources, raw.nodes[other].num_nodes, raw.nodes[other].names
        )  # fmt: skip
        nodes[owner] = replace(nodes[owner], attributes={**nodes[owner].attributes, name: bags})
    if not relations:
        raise ConfigError("bags names all relations: a graph needs at least one")
    used = {end for relation in relations.values() for end in (relation.source, relation.target)}
    used_types = {name: kind for name, kind in nodes.items() if name in used or name == labelled}
    return replace(raw, nodes=used_types, relations=relations)


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
        new_array = _new_sources(files, len(relations))
        edges = _group(chunks, ends, relation.origin, raw.nodes, rules, new_array)
        relations[name] = Relation(*ends, edges.starts, edges.sources)
        if held_out is not None:
            found = {
                "train": held_out.training_links(
                    edges, lambda length, dtype: files.new(links_file("train"), length, dtype)
                ),
                **held_out.links(),
            }
        if rules.undirected and not same_type:
            new_array = _new_sources(files, len(relations))
            edges = _group(
                _turned(chunks), ends[::-1], relation.origin, raw.nodes, rules, new_array
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
    new_array: NewArray,
) -> GroupedEdges:
    source, target = ends
    try:
        return group_edges(
            chunks, nodes[source].num_nodes, nodes[target].num_nodes, rules,
            same_type=source == target, new_array=new_array,
        )  # fmt: skip
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None


def _new_sources(files: ArrayFiles, number: int) -> NewArray:
    return lambda length, dtype: files.new(sources_file(number), length, dtype)


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
