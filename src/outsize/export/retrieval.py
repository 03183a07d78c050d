"""Exported retrieval models: towers, the vectors of all items, and exact search over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from outsize.errors import ConfigError, DataError
from outsize.export.format import CONFIG, VOCABULARIES, described, registered, unreadable
from outsize.export.pairs import ItemNames, PairFiles, RowsOf, listed_items
from outsize.export.weights import all_tensors, opened
from outsize.export.write import write_model
from outsize.json_files import SchemaError
from outsize.kernels.ragged import Ragged
from outsize.models import RETRIEVAL_MODELS, RetrievalModel, RetrievalModelConfig
from outsize.text_bytes import as_bytes, from_bytes

if TYPE_CHECKING:
    from outsize.data.entity_encoder import EntityEncoder

ITEMS, COLD = "items.safetensors", "queries.cold"
_QUERIES_PER_CHUNK = 1024
BestOf = Callable[[Ragged | None], tuple[Tensor, Tensor]]
"""Rows and scores of the best items of some queries, given rows to leave out, a list per query."""


@dataclass(frozen=True)
class FoundItems:
    """The best items of each query, best first.

    Attributes:
        items: Raw ids; fewer than asked for where there are no more items.
        scores: Their scores, `(num_queries, k)`; −inf where there are no more items.
    """

    items: list[list[str]]
    scores: NDArray[np.float32]


def write_exported_retrieval(
    folder: str | Path,
    model: RetrievalModel,
    config: RetrievalModelConfig,
    vectors: Float32[Tensor, "num_items dim"],
    names: Sequence[str],
    training: Mapping[str, Any] | None = None,
    *,
    encoder: EntityEncoder | None = None,
    data: Mapping[str, Any] | None = None,
    pairs: Mapping[str, Any] | None = None,
    cold: NDArray[np.uint64] | None = None,
) -> dict[str, Any]:
    """Write a retrieval model with its items to a folder, atomically.

    Args:
        folder: The folder to write; it must be new or empty.
        model: The model.
        config: The configuration that the model was built from.
        vectors: The vectors of all items.
        names: The raw ids of these items.
        training: As for `write_exported`.
        encoder: How raw values of queries become features; without it, the loaded model searches
            with features only.
        data: Facts about the training data for the card, as plain values.
        pairs: How files of pairs are read (see `PairFiles`), with the "metrics" that are measured
            on them and the inverse temperature "beta"; without it, no file can be evaluated.
        cold: Keys of queries without a training pair, which are not evaluated.
    """
    facts: dict[str, Any] = {
        "towers": towers_of(model),
        "encoding": None,
        "pairs": None if pairs is None else dict(pairs),
    }
    files = {ITEMS: {"vectors": vectors.cpu().contiguous(), **as_bytes(names)}}
    if encoder is not None:
        facts["encoding"], files[VOCABULARIES] = encoder.only(model.query_features).state()
        if cold is not None and len(cold):
            files[VOCABULARIES][COLD] = torch.from_numpy(cold.view(np.int64))
    return write_model(folder, model, config, RETRIEVAL_MODELS, facts, files, training, data)


def towers_of(model: RetrievalModel) -> dict[str, list[str]]:
    """What the configuration says of the features of a model's towers."""
    return {
        "query_features": list(model.query_features),
        "item_features": list(model.item_features),
        "numbers": sorted(model.numbers),
    }


def build_retrieval(
    kind: str, settings: Mapping[str, Any], config: Mapping[str, Any], embeddings: Any
) -> RetrievalModel:
    """Build the retrieval model that a configuration describes."""
    towers = config["towers"]
    return registered("model", kind, RETRIEVAL_MODELS)(**settings).build(
        embeddings,
        towers["query_features"],
        towers["item_features"],
        seed=0,
        numbers=towers["numbers"],
    )


class ItemSearcher:
    """Searches the items of an exported model exactly.

    Args:
        vectors: The vectors of all items.
        names: Their raw ids.
        encoder: How raw values become features of queries, if known.
        pairs: How files of pairs are read, if known.
        cold: Keys of queries that are not evaluated.
    """

    def __init__(
        self,
        vectors: Float32[Tensor, "num_items dim"],
        names: Sequence[str],
        encoder: EntityEncoder | None,
        pairs: PairFiles | None = None,
        cold: NDArray[np.uint64] | None = None,
    ) -> None:
        self.vectors = vectors
        self.names = names
        self.encoder = encoder
        self.pairs = pairs
        self.cold = np.zeros(0, np.uint64) if cold is None else cold

    @cached_property
    def items(self) -> ItemNames:
        """Raw ids of items → their rows."""
        return ItemNames(self.names)

    @classmethod
    def of_folder(cls, folder: Path, config: Mapping[str, Any]) -> ItemSearcher:
        """The searcher of an exported model."""
        with opened(folder, ITEMS) as file:
            if set(file.keys()) != {"vectors", "names", "ends"}:
                raise unreadable(folder, f"{ITEMS} does not hold vectors, names and ends")
            vectors = file.get_tensor("vectors")
            try:
                names = from_bytes(file.get_tensor("names"), file.get_tensor("ends"))
            except ValueError as error:
                raise unreadable(folder, f"the names in {ITEMS} cannot be read: {error}") from None
        if len(names) != len(vectors):
            raise unreadable(folder, f"{ITEMS} names {len(names):,} of {len(vectors):,} items")
        encoder, cold, pairs = None, None, None
        if config.get("encoding") is not None:
            encoder, cold = _load_encoder(folder, config["encoding"])
        if config.get("pairs") is not None:
            try:
                pairs = PairFiles.from_facts(config["pairs"])
            except SchemaError as error:
                raise unreadable(folder, f"pairs in {CONFIG}: {error}") from None
        return cls(vectors, names, encoder, pairs, cold)

    def search(self, model: RetrievalModel, rows: Any, k: int, exclude: Any = None) -> FoundItems:
        """The best items for rows of raw values; see `RetrievalModel.search`."""
        from outsize.data.encoding.bad_rows import BadRows
        from outsize.data.encoding.frames import frame_chunks
        from outsize.data.encoding.rows import check_rows, wanted_columns

        if self.encoder is None:
            raise ConfigError(
                "this model does not know how raw values become features: it was trained on data "
                "that has none"
            )
        encoder, recipe = self.encoder, self.encoder.recipe()

        def chunks() -> Iterator[tuple[int, BestOf]]:
            for chunk in frame_chunks(rows, wanted_columns(recipe)):
                bad = BadRows()
                good, is_good = check_rows(chunk, None, recipe, bad)
                features, _ = encoder.encode(good, chunk.numbers[is_good], bad)
                if bad.total:
                    kind, where = next(iter(bad.first.items()))
                    raise DataError(
                        f"{bad.total:,} rows (counted from 0) cannot be searched for: {where} is "
                        f"{kind}"
                    )
                yield chunk.num_rows, partial(self.search_features, model, features, k)

        return find_items(chunks(), k, exclude, self.items, self.names_at)

    def names_at(self, rows: NDArray[np.int64]) -> list[str]:
        """The raw ids of items."""
        return [self.names[row] for row in rows.tolist()]

    @torch.no_grad()
    def search_features(
        self,
        model: RetrievalModel,
        features: Mapping[str, Tensor],
        k: int,
        excluded: Ragged | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The rows and scores of the best items for encoded queries; −1 where there are no more.

        Args:
            model: The model.
            features: The features of the queries.
            k: Items per query.
            excluded: Rows of items to leave out, a list per query.
        """
        was_training = model.training
        model.eval()
        try:
            queries = model.encode_queries(features).float().cpu()
        finally:
            model.train(was_training)
        return best_items(self.vectors, queries, k, excluded)


def best_items(
    vectors: Float32[Tensor, "num_items dim"],
    queries: Float32[Tensor, "num_queries dim"],
    k: int,
    excluded: Ragged | None = None,
) -> tuple[Tensor, Tensor]:
    """The rows and scores of the best items, best first; −1 and −inf where there are no more.

    Args:
        vectors: The vectors of all items.
        queries: The vectors of queries.
        k: Items per query.
        excluded: Rows of items to leave out, a list per query.
    """
    from outsize.kernels.softmax.best_items import top_items
    from outsize.kernels.softmax.draws import ScoredItems

    scored = ScoredItems(vectors, None, torch.zeros(len(vectors)))
    num = min(k, len(vectors))
    parts = []
    for first in range(0, max(1, len(queries)), _QUERIES_PER_CHUNK):
        last = first + _QUERIES_PER_CHUNK
        out = None if excluded is None else excluded.part(first, last)
        parts.append(top_items(queries[first:last], scored, num, out))
    rows = torch.cat([rows for rows, _ in parts])
    scores = torch.cat([scores for _, scores in parts])
    missing = (0, k - num)
    return (
        torch.nn.functional.pad(rows, missing, value=-1),
        torch.nn.functional.pad(scores, missing, value=-torch.inf),
    )


def find_items(
    chunks: Iterable[tuple[int, BestOf]],
    k: int,
    exclude: Any,
    ids: RowsOf,
    names_at: Callable[[NDArray[np.int64]], list[Any]],
) -> FoundItems:
    """The best items for rows in memory, of which each may leave out some.

    Args:
        chunks: The number of rows of each chunk, and what finds the best items for them.
        k: Items per row.
        exclude: Raw ids to leave out, a list per row; `None` for none.
        ids: Looks up these ids.
        names_at: The raw ids of rows of items.
    """
    if k < 1:
        raise ConfigError(f"k must be >= 1, but got {k}")
    lists = None
    if exclude is not None:
        lists, unknown = listed_items(exclude, ids)
        unknown.warn(stacklevel=4)
    first, items, scores = 0, [], [np.zeros((0, k), np.float32)]
    for num_rows, best in chunks:
        first, before = first + num_rows, first
        if lists is not None and first > lists.num_lines:
            raise _other_length(lists.num_lines, first)
        found, found_scores = best(None if lists is None else lists.part(before, first))
        items += [names_at(line[line >= 0]) for line in found.numpy()]
        scores.append(found_scores.numpy())
    if lists is not None and lists.num_lines != first:
        raise _other_length(lists.num_lines, first)
    return FoundItems(items, np.concatenate(scores))


def _other_length(num_lists: int, num_rows: int) -> DataError:
    """The error for lists of items to exclude that do not fit the rows."""
    which = "more than" if num_rows > num_lists else "only"
    return DataError(
        f"exclude has {num_lists:,} lists, but there are {which} {min(num_rows, num_lists):,} rows"
    )


def _load_encoder(
    folder: Path, facts: Mapping[str, Any]
) -> tuple[EntityEncoder, NDArray[np.uint64] | None]:
    """The encoder of queries, and the keys of those that are not evaluated."""
    from outsize.data.entity_encoder import EntityEncoder

    tensors = all_tensors(folder, VOCABULARIES)
    with described(folder, "the encoding"):
        cold = tensors.pop(COLD, None)
        keys = None if cold is None else cold.numpy().view(np.uint64)
        return EntityEncoder.from_state(facts, tensors), keys
