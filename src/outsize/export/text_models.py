"""Exported text models: the encoder, its tokenizer, and the vectors and texts of all items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32
from torch import Tensor

from outsize.errors import ConfigError, one_line
from outsize.export.format import TEXTS, TOKENIZER, described, unreadable
from outsize.export.retrieval import (
    ITEMS,
    FoundItems,
    ItemSearcher,
    best_items,
    find_items,
    towers_of,
)
from outsize.export.weights import all_tensors, opened
from outsize.export.write import write_model
from outsize.models import RETRIEVAL_MODELS, RetrievalModel, RetrievalModelConfig, TextModel
from outsize.suggestions import few, shortened
from outsize.text_bytes import TextBytes, as_bytes

_TEXT, _ENDS = "text", "text_ends"


@dataclass(frozen=True)
class ItemTexts:
    """The items of a text model.

    Attributes:
        names: Their ids.
        texts: Their texts.
        facts: What else is known of each, texts or whole numbers, such as "file" and "line".
    """

    names: Sequence[str] = field(repr=False)
    texts: Sequence[str] = field(repr=False)
    facts: Mapping[str, Sequence[str] | Sequence[int]] = field(default_factory=dict, repr=False)


def write_exported_texts(
    folder: str | Path,
    model: RetrievalModel,
    config: RetrievalModelConfig,
    vectors: Float32[Tensor, "num_items dim"],
    items: ItemTexts,
    training: Mapping[str, Any] | None = None,
    *,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a text model with its items to a folder, atomically.

    Args:
        folder: The folder to write; it must be new or empty.
        model: The model, with its tokenizer.
        config: The configuration that the model was built from.
        vectors: The vectors of all items.
        items: The items.
        training: As for `write_exported`.
        data: Facts about the training data for the card, as plain values.
    """
    assert model.tokenizer is not None
    tokenizer, tensors = model.tokenizer.state()
    facts = {
        "towers": towers_of(model),
        "encoding": None,
        "pairs": None,
        "tokenizer": tokenizer,
        "texts": {"facts": list(items.facts)},
    }
    texts = as_bytes(items.texts, _TEXT, _ENDS)
    for name, values in items.facts.items():
        texts |= _fact_tensors(name, values)
    files = {
        ITEMS: {"vectors": vectors.cpu().contiguous(), **as_bytes(items.names)},
        TEXTS: texts,
        TOKENIZER: tensors,
    }
    return write_model(folder, model, config, RETRIEVAL_MODELS, facts, files, training, data)


def load_tokenizer(
    model: RetrievalModel,
    kind: str,
    settings: Mapping[str, Any],
    folder: Path,
    config: Mapping[str, Any],
) -> None:
    """Give an exported text model, of some kind and settings, its tokenizer."""
    made = RETRIEVAL_MODELS[kind](**settings)
    tensors = all_tensors(folder, TOKENIZER)
    with described(folder, "the tokenizer"):
        model.use_tokenizer(made.load_tokenizer(config["tokenizer"], tensors))


class TextSearcher(ItemSearcher):
    """Searches the items of an exported text model exactly, and shows their texts.

    Args:
        vectors: The vectors of all items.
        names: Their ids.
        texts: Their texts.
        facts: What else is known of each.
    """

    def __init__(
        self,
        vectors: Float32[Tensor, "num_items dim"],
        names: Sequence[str],
        texts: TextBytes,
        facts: Mapping[str, Any],
    ) -> None:
        super().__init__(vectors, names, None)
        self.texts, self.facts = texts, facts

    @classmethod
    def of_folder(cls, folder: Path, config: Mapping[str, Any]) -> TextSearcher:
        """The searcher of an exported model."""
        found = ItemSearcher.of_folder(folder, config)
        try:
            with opened(folder, TEXTS) as file:
                texts = TextBytes(file.get_tensor(_TEXT), file.get_tensor(_ENDS))
                facts = {name: _fact_of(file, name) for name in config["texts"]["facts"]}
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(folder, f"{TEXTS}: {one_line(error)}") from None
        for name, values in {"texts": texts, **facts}.items():
            if len(values) != len(found.names):
                raise unreadable(folder, f"{TEXTS} has {name} of {len(values):,} items, but "
                                 f"{ITEMS} has {len(found.names):,}")  # fmt: skip
        return cls(found.vectors, found.names, texts, facts)

    def search(self, model: RetrievalModel, rows: Any, k: int, exclude: Any = None) -> FoundItems:
        """The best items for texts; see `RetrievalModel.search`."""
        assert isinstance(model, TextModel)
        texts = [rows] if isinstance(rows, str) else list(rows)
        for text in texts:
            if not isinstance(text, str):
                raise ConfigError(
                    f"this model searches for texts: give a list of them, not of "
                    f"{type(text).__name__}"
                )
        best = partial(best_items, self.vectors, model.encode_query_texts(texts), k)
        return find_items([(len(texts), best)], k, exclude, self.items, self.names_at)

    def row_of(self, name: str) -> int:
        """The row of an item, by its id."""
        import pyarrow as pa

        row = int(self.items.rows_of(pa.array([name], pa.large_string()))[0])
        if row < 0:
            raise ConfigError(f"no item {shortened(name)!r}; there are {few(self.names, name)}")
        return row

    def item_text(self, name: str) -> str:
        """The text of an item, by its id."""
        return self.texts[self.row_of(name)]

    def item_facts(self, name: str) -> dict[str, str | int]:
        """What else is known of an item, by its id, such as its "file" and "line"."""
        row = self.row_of(name)
        return {fact: values[row] for fact, values in self.facts.items()}


def _fact_tensors(name: str, values: Sequence[str] | Sequence[int]) -> dict[str, Tensor]:
    if len(values) and isinstance(values[0], str):
        return as_bytes(values, f"fact.{name}", f"fact_ends.{name}")  # type: ignore[arg-type]
    return {f"fact.{name}": torch.from_numpy(np.array(values, np.int64))}


def _fact_of(file: Any, name: str) -> Any:
    values = file.get_tensor(f"fact.{name}")
    if f"fact_ends.{name}" in file.keys():  # noqa: SIM118
        return TextBytes(values, file.get_tensor(f"fact_ends.{name}"))
    return values.tolist()
