"""Exported retrieval models: towers, the vectors of all items, and exact search over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from outsize.errors import ConfigError, DataError, OutsizeError
from outsize.export.format import CONFIG, VOCABULARIES, WEIGHTS, one_line, unreadable
from outsize.export.tables import exported_tables
from outsize.export.weights import opened
from outsize.export.write import BATCH_SIZE, dense_state, table_state, write_folder
from outsize.json_files import SchemaError
from outsize.models import RETRIEVAL_MODELS, RetrievalModel, RetrievalModelConfig, TwoTower
from outsize.registries import name_of

if TYPE_CHECKING:
    from outsize.data.entity_encoder import EntityEncoder

ITEMS = "items.safetensors"
_QUERIES_PER_CHUNK = 1024


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
    model: TwoTower,
    config: RetrievalModelConfig,
    vectors: Float32[Tensor, "num_items dim"],
    names: Sequence[str],
    training: Mapping[str, Any] | None = None,
    *,
    encoder: EntityEncoder | None = None,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a two-tower model with its items to a folder, atomically.

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
    """
    tables = exported_tables(model.embeddings)
    facts: dict[str, Any] | None = None
    tensors: dict[str, Tensor] = {}
    if encoder is not None:
        facts, tensors = encoder.only(model.query_features).state()
    content = {
        "task": "retrieval",
        "model": {"kind": name_of(RETRIEVAL_MODELS, config), **dataclasses.asdict(config)},  # type: ignore[call-overload]
        "towers": {
            "query_features": list(model.query_features),
            "item_features": list(model.item_features),
            "numbers": sorted(model.numbers),
        },
        "features": [dataclasses.asdict(feature) for feature in model.embeddings.features],
        "tables": [table.facts for table in tables],
        "encoding": facts,
        "batch_size": BATCH_SIZE,
        "training": dict(training or {}),
    }
    dense = dense_state(model)
    files = {
        WEIGHTS: {**dense, **table_state(tables)},
        ITEMS: {"vectors": vectors.cpu().contiguous(), **_as_bytes(names)},
    }
    if facts is not None:
        files[VOCABULARIES] = tensors
    return write_folder(Path(folder), content, files, tables, dense, dict(data or {}))


def build_retrieval(
    kind: str, settings: Mapping[str, Any], config: Mapping[str, Any], embeddings: Any
) -> RetrievalModel:
    """Build the retrieval model that a configuration describes."""
    if kind not in RETRIEVAL_MODELS:
        raise ConfigError(
            f"no model {kind!r}; there are {', '.join(RETRIEVAL_MODELS)}: if it is your own, "
            "import its module first"
        )
    towers = config["towers"]
    return RETRIEVAL_MODELS[kind](**settings).build(
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
    """

    def __init__(
        self,
        vectors: Float32[Tensor, "num_items dim"],
        names: Sequence[str],
        encoder: EntityEncoder | None,
    ) -> None:
        self.vectors = vectors
        self.names = names
        self.encoder = encoder

    @classmethod
    def of_folder(cls, folder: Path, config: Mapping[str, Any]) -> ItemSearcher:
        """The searcher of an exported model."""
        with opened(folder, ITEMS) as file:
            if set(file.keys()) != {"vectors", "names", "ends"}:
                raise unreadable(folder, f"{ITEMS} does not hold vectors, names and ends")
            vectors = file.get_tensor("vectors")
            names = _from_bytes(file.get_tensor("names"), file.get_tensor("ends"))
        if len(names) != len(vectors):
            raise unreadable(folder, f"{ITEMS} names {len(names):,} of {len(vectors):,} items")
        encoder = None
        if config.get("encoding") is not None:
            encoder = _load_encoder(folder, config["encoding"])
        return cls(vectors, names, encoder)

    def search(self, model: RetrievalModel, rows: Any, k: int) -> FoundItems:
        """The best items for rows of raw values; see `RetrievalModel.search`."""
        from outsize.data.encoding.bad_rows import BadRows
        from outsize.data.encoding.frames import frame_chunks
        from outsize.data.encoding.rows import check_rows, wanted_columns

        if self.encoder is None:
            raise ConfigError(
                "this model does not know how raw values become features: it was trained on data "
                "that has none"
            )
        if k < 1:
            raise ConfigError(f"k must be >= 1, but got {k}")
        recipe = self.encoder.recipe()
        items: list[list[str]] = []
        scores: list[NDArray[np.float32]] = [np.zeros((0, k), np.float32)]
        for chunk in frame_chunks(rows, wanted_columns(recipe)):
            bad = BadRows()
            good, is_good = check_rows(chunk, None, recipe, bad)
            features, _ = self.encoder.encode(good, chunk.numbers[is_good], bad)
            if bad.total:
                kind, where = next(iter(bad.first.items()))
                raise DataError(
                    f"{bad.total:,} rows (counted from 0) cannot be searched for: {where} is {kind}"
                )
            found, logits = self.search_features(model, features, k)
            items += [[self.names[row] for row in line if row >= 0] for line in found.tolist()]
            scores.append(logits.numpy())
        return FoundItems(items, np.concatenate(scores))

    @torch.no_grad()
    def search_features(
        self, model: RetrievalModel, features: Mapping[str, Tensor], k: int
    ) -> tuple[Tensor, Tensor]:
        """The rows and scores of the best items for encoded queries; −1 where there are no more."""
        from outsize.kernels.softmax.best_items import top_items
        from outsize.kernels.softmax.draws import ScoredItems

        was_training = model.training
        model.eval()
        try:
            queries = model.encode_queries(features).float().cpu()
        finally:
            model.train(was_training)
        scored = ScoredItems(self.vectors, None, torch.zeros(len(self.vectors)))
        num = min(k, len(self.vectors))
        parts = [top_items(part, scored, num) for part in queries.split(_QUERIES_PER_CHUNK)]
        rows = torch.cat([rows for rows, _ in parts])
        scores = torch.cat([scores for _, scores in parts])
        missing = (0, k - num)
        return (
            torch.nn.functional.pad(rows, missing, value=-1),
            torch.nn.functional.pad(scores, missing, value=-torch.inf),
        )


def _load_encoder(folder: Path, facts: Mapping[str, Any]) -> EntityEncoder:
    from outsize.data.entity_encoder import EntityEncoder

    with opened(folder, VOCABULARIES) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    try:
        return EntityEncoder.from_state(facts, tensors)
    except (SchemaError, OutsizeError, KeyError, TypeError, ValueError) as error:
        raise unreadable(folder, f"the encoding in {CONFIG}: {one_line(error)}") from None


def _as_bytes(names: Sequence[str]) -> dict[str, Tensor]:
    """Texts as the bytes of all of them, and the end of each."""
    encoded = [name.encode() for name in names]
    ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8).copy()
    return {"names": torch.from_numpy(data), "ends": torch.from_numpy(ends)}


def _from_bytes(data: Tensor, ends: Tensor) -> list[str]:
    """The inverse of `_as_bytes`."""
    text, places = data.numpy().tobytes(), [0, *ends.tolist()]
    return [text[a:b].decode() for a, b in pairwise(places)]
