"""From raw rows to the nodes they ask for: those of the graph, and new ones with neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.export.graph_columns import GraphColumns
from outsize.export.graph_encoder import Lists, NewNodes
from outsize.export.left_out import LeftOut, shown_value
from outsize.suggestions import few

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.sources import Chunk
    from outsize.data.graphs.graph import Graph
    from outsize.export.raw_ids import RawIds


@dataclass(frozen=True)
class AskedNodes:
    """The nodes that rows ask for.

    Attributes:
        is_good: A mask of the rows of a chunk that ask for a node.
        nodes: The number of the node of each good row; −1 for a new one.
        new: The new ones, in order.
    """

    is_good: NDArray[np.bool_]
    nodes: NDArray[np.int64]
    new: NewNodes

    def take(self, mask: NDArray[np.bool_]) -> AskedNodes:
        """Some of the good rows."""
        is_good = self.is_good.copy()
        is_good[is_good] = mask
        return AskedNodes(is_good, self.nodes[mask], self.new.take(mask[self.nodes < 0]))


def unknown_neighbors() -> LeftOut:
    """Neighbours of new nodes that the graph does not have."""
    return LeftOut("of the neighbours are of no node of the graph")


class NodeReader:
    """Reads which nodes rows ask for; what looks up raw ids is made when it is first used.

    Args:
        graph: The graph.
        node_type: The type of the nodes.
        columns: The columns.
    """

    def __init__(self, graph: Graph, node_type: str, columns: GraphColumns) -> None:
        self._graph, self.node_type, self.columns = graph, node_type, columns
        self._ids: dict[str, RawIds] = {}
        self._values: dict[str, RawIds] = {}

    def ids_of(self, node_type: str) -> RawIds:
        """What looks up the nodes of a type."""
        from outsize.export.raw_ids import RawIds

        if node_type not in self._ids:
            nodes = self._graph.nodes[node_type]
            self._ids[node_type] = RawIds(nodes.names, nodes.num_nodes)
        return self._ids[node_type]

    def read(self, chunk: Chunk, path: Path | None, bad: BadRows, unknown: LeftOut) -> AskedNodes:
        """The nodes that the rows of a chunk ask for; rows that ask for none are bad."""
        bad.num_rows += chunk.num_rows
        numbers, missing = self.look_up(chunk, path, self.columns.id, self.node_type)
        chunk.refuse(bad, f"a missing value of {self.columns.id!r}", missing, path)
        is_new = (numbers < 0) & ~missing
        new = self._new_nodes(chunk, path, is_new, unknown)
        total = np.zeros(new.count, np.int64)
        for lists in (*new.neighbors.values(), *new.attributes.values()):
            total += lists.lengths
        lost = is_new.copy()
        lost[is_new] = total == 0
        ids = chunk.columns[self.columns.id]
        chunk.refuse(bad, self._unknown(), lost, path, lambda row: shown_value(ids[row]))
        is_good = ~missing & ~lost
        return AskedNodes(is_good, numbers[is_good], new.take(total > 0))

    def look_up(
        self, chunk: Chunk, path: Path | None, name: str, node_type: str
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The node of each row by a column, −1 if it is unknown, and a mask of missing values."""
        return _numbers(self.ids_of(node_type), chunk.columns[name], path, name)

    def _new_nodes(
        self, chunk: Chunk, path: Path | None, is_new: NDArray[np.bool_], unknown: LeftOut
    ) -> NewNodes:
        count = int(is_new.sum())
        if not count:
            return NewNodes(0)
        neighbors = {}
        for relation, column in self.columns.neighbors.items():
            if column in chunk.columns:
                ids = self.ids_of(self._graph.relations[relation].source)
                lists, flat = self._lists(chunk, path, is_new, column, ids)
                unknown.add(flat.filter(_mask(lists.values < 0)))
                neighbors[relation] = lists.without(lists.values < 0)
        attributes = {}
        for attribute, column in self.columns.attributes.items():
            if column in chunk.columns:
                lists, _ = self._lists(chunk, path, is_new, column, self._values_of(attribute))
                attributes[attribute] = lists.without(lists.values < 0)
        return NewNodes(count, neighbors, attributes)

    def _values_of(self, attribute: str) -> RawIds:
        from outsize.export.raw_ids import RawIds

        if attribute not in self._values:
            bags = self._graph.nodes[self.node_type].attributes[attribute]
            self._values[attribute] = RawIds(bags.names, bags.num_ids)
        return self._values[attribute]

    def _lists(
        self, chunk: Chunk, path: Path | None, rows: NDArray[np.bool_], name: str, ids: RawIds
    ) -> tuple[Lists, Any]:
        import pyarrow as pa

        from outsize.export.raw_ids import naming_column, split_lists

        column = chunk.columns[name]
        try:
            lengths, flat = split_lists(column.filter(_mask(rows)), self.columns.separator)
        except pa.ArrowException as error:
            raise naming_column(path, name, column, error) from None
        numbers, _ = _numbers(ids, flat, path, name)
        return Lists.of(lengths, numbers), flat

    def _unknown(self) -> str:
        wanted = [*self.columns.neighbors.values(), *self.columns.attributes.values()]
        where = f" (they would be in {few(wanted)})" if wanted else ""
        return f"an id that the graph does not have, without known neighbours{where}"


def _numbers(
    ids: RawIds, column: Any, path: Path | None, name: str
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    import pyarrow as pa

    from outsize.export.raw_ids import naming_column

    try:
        return ids.numbers(column)
    except (pa.ArrowException, DataError) as error:
        raise naming_column(path, name, column, error) from None


def _mask(values: NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.array(values)
