"""Predicting nodes and links of raw rows with a graph model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from outsize.errors import ConfigError
from outsize.export.asked_nodes import AskedNodes, NodeReader, unknown_neighbors
from outsize.export.graph_columns import GraphColumns
from outsize.export.graph_encoder import GraphEncoder
from outsize.export.left_out import shown_value
from outsize.export.predicting import cannot_score_rows
from outsize.export.retrieval import FoundItems, best_items, find_items
from outsize.kernels.ragged import Ragged
from outsize.models import GraphModel

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.sources import Chunk


class NodePredictor:
    """Predicts the classes of nodes.

    Args:
        encoder: Computes their logits.
        reader: Reads which nodes rows ask for.
        classes: The names of the classes.
        multi_label: Whether a node may have several.
    """

    def __init__(
        self,
        encoder: GraphEncoder,
        reader: NodeReader,
        classes: tuple[str, ...],
        *,
        multi_label: bool,
    ) -> None:
        self.encoder, self.reader = encoder, reader
        self.classes, self.multi_label = classes, multi_label

    def predict(
        self, model: GraphModel, rows: Any, *, logits: bool = False, skip_bad: bool = False
    ) -> NDArray[Any]:
        """See `GraphModel.predict`."""
        kind = np.float32 if logits else np.float64
        parts: list[NDArray[Any]] = [np.zeros((0, len(self.classes)), kind)]
        for chunk, asked in frames_of(self.reader, rows, skip_bad):
            found = np.full((chunk.num_rows, len(self.classes)), np.nan, kind)
            values = self.encoder.encode(self.reader.node_type, asked.nodes, asked.new)
            found[asked.is_good] = (values if logits else self.probabilities(values)).numpy()
            parts.append(found)
        return np.concatenate(parts)

    def search(self, model: GraphModel, rows: Any, k: int, exclude: Any = None) -> FoundItems:
        """Refused: there are no targets."""
        raise ConfigError(
            "this model predicts the classes of nodes: use predict; search is for models of links"
        )

    def probabilities(self, logits: Float32[Tensor, "n classes"]) -> Tensor:
        """The probability of each class, float64."""
        wide = logits.double()
        return torch.sigmoid(wide) if self.multi_label else torch.softmax(wide, dim=1)


class LinkPredictor:
    """Scores links, and finds the best targets.

    Args:
        encoder: Computes the vectors of new sources.
        reader: Reads which sources rows ask for.
        target_type: The node type of targets.
        targets: The vectors of all nodes of that type.
        sources: The vectors of all sources, if they are of another type.
        cold: Sources without a training link, which are not evaluated.
    """

    classes: tuple[str, ...] = ()

    def __init__(
        self,
        encoder: GraphEncoder,
        reader: NodeReader,
        target_type: str,
        targets: Float32[Tensor, "num_targets dim"],
        sources: Float32[Tensor, "num_sources dim"] | None,
        cold: NDArray[np.int64],
    ) -> None:
        self.encoder, self.reader, self.target_type = encoder, reader, target_type
        self.targets, self.sources = targets, targets if sources is None else sources
        self.cold = cold
        self._same_type = sources is None

    @property
    def columns(self) -> GraphColumns:
        """The columns that are read."""
        return self.reader.columns

    def predict(
        self, model: GraphModel, rows: Any, *, logits: bool = False, skip_bad: bool = False
    ) -> NDArray[Any]:
        """See `GraphModel.predict`."""
        parts = [np.zeros(0, np.float32 if logits else np.float64)]
        for chunk, asked, targets in self._frames_of_pairs(rows, skip_bad):
            found = np.full(chunk.num_rows, np.nan, parts[0].dtype)
            found[asked.is_good] = self.score(asked, targets).numpy()
            parts.append(found)
        return np.concatenate(parts)

    def search(self, model: GraphModel, rows: Any, k: int, exclude: Any = None) -> FoundItems:
        """See `GraphModel.search`."""
        frames = frames_of(self.reader, rows, skip_bad=False)
        chunks = ((chunk.num_rows, partial(self.best_targets, asked, k)) for chunk, asked in frames)
        ids = self.reader.ids_of(self.target_type)
        return find_items(chunks, k, exclude, ids, self.names)

    def encode(self, asked: AskedNodes) -> Float32[Tensor, "n dim"]:
        """The vectors of sources: those at hand, and those of new nodes."""
        is_new = torch.from_numpy(asked.nodes < 0)
        vectors = self.sources[torch.from_numpy(asked.nodes).clamp_min(0)]
        if is_new.any():
            nodes = asked.nodes[asked.nodes < 0]
            vectors[is_new] = self.encoder.encode(self.reader.node_type, nodes, asked.new)
        return vectors

    def score(self, asked: AskedNodes, targets: NDArray[np.int64]) -> Float32[Tensor, " n"]:
        """The score of each pair."""
        return (self.encode(asked) * self.targets[torch.from_numpy(targets)]).sum(dim=1)

    def best_targets(
        self, asked: AskedNodes, k: int, excluded: Ragged | None = None
    ) -> tuple[Tensor, Tensor]:
        """The rows and scores of the best targets; −1 and −inf where there are no more."""
        if self._same_type:
            own = Ragged.from_sizes(
                torch.from_numpy(asked.nodes), torch.ones(len(asked.nodes), dtype=torch.int64)
            )
            excluded = own if excluded is None else excluded.concatenate_lists(own)
        return best_items(self.targets, self.encode(asked), k, excluded)

    def read_targets(
        self, chunk: Chunk, path: Path | None, asked: AskedNodes, bad: BadRows
    ) -> tuple[AskedNodes, NDArray[np.int64]]:
        """The pairs whose target is in the graph, and their targets; other rows are bad."""
        column = self.columns.target
        assert column is not None
        numbers, missing = self.reader.look_up(chunk, path, column, self.target_type)
        is_lost = missing & asked.is_good
        chunk.refuse(bad, f"a missing value of {column!r}", is_lost, path)
        unknown = (numbers < 0) & ~missing & asked.is_good
        kind = f"a value of {column!r} that the graph does not have"
        ids = chunk.columns[column]
        chunk.refuse(bad, kind, unknown, path, lambda row: shown_value(ids[row]))
        return asked.take(numbers[asked.is_good] >= 0), numbers[asked.is_good & (numbers >= 0)]

    def names(self, numbers: NDArray[np.int64]) -> list[Any]:
        """The raw ids of targets."""
        names = self.encoder.graph.nodes[self.target_type].names
        found: list[Any] = numbers.tolist() if names is None else names.take(numbers).to_pylist()
        return found

    def _frames_of_pairs(
        self, rows: Any, skip_bad: bool
    ) -> Iterator[tuple[Chunk, AskedNodes, NDArray[np.int64]]]:
        from outsize.data.encoding.bad_rows import BadRows

        for chunk, asked in frames_of(self.reader, rows, skip_bad, self.columns.target):
            bad = BadRows()
            pairs, targets = self.read_targets(chunk, None, asked, bad)
            if bad.total and not skip_bad:
                raise cannot_score_rows(bad, chunk.numbers[~pairs.is_good])
            yield chunk, pairs, targets


def frames_of(
    reader: NodeReader, rows: Any, skip_bad: bool, *others: str | None
) -> Iterator[tuple[Chunk, AskedNodes]]:
    """The nodes that rows in memory ask for, in chunks.

    Args:
        reader: Reads them.
        rows: The rows.
        skip_bad: Whether rows that ask for none are left out, instead of raising an error.
        others: Further columns to read.
    """
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.frames import frame_chunks, frame_columns

    unknown = unknown_neighbors()
    for chunk in frame_chunks(rows, reader.columns.wanted(frame_columns(rows), *others)):
        bad = BadRows()
        asked = reader.read(chunk, None, bad, unknown)
        if bad.total and not skip_bad:
            raise cannot_score_rows(bad, chunk.numbers[~asked.is_good])
        yield chunk, asked
    unknown.warn(stacklevel=5)
