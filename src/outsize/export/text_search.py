"""Answers of an exported text model: items with their texts, from its own vectors or an index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.errors import ConfigError
from outsize.export.format import WEIGHTS, read_config
from outsize.export.load import load_exported
from outsize.export.text_models import TextSearcher
from outsize.models import TextModel
from outsize.search import ItemIndex, Repair
from outsize.search.manifest import MANIFEST
from outsize.text_bytes import is_text

_ENCODED_AT_ONCE = 4096


@dataclass(frozen=True)
class Answer:
    """An item that was found.

    Attributes:
        rank: 1 for the best.
        score: Its inner product with the query.
        id: Its id.
        text: Its text.
        facts: What else is known of it, such as its "file" and "line".
        version: The version of the model that encoded it.
    """

    rank: int
    score: float
    id: str
    text: str
    facts: dict[str, str | int]
    version: str

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        plain = asdict(self)
        facts = plain.pop("facts")
        return {**facts, **plain}


class TextSearch:
    """Searches the items of an exported text model.

    Args:
        folder: The export.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        model = load_exported(folder)
        if not isinstance(model, TextModel) or not isinstance(model.searcher, TextSearcher):
            raise ConfigError(
                f"{folder} holds no text model, so it cannot be searched with texts: use "
                "outsize predict for raw rows"
            )
        self.model, self.items = model, model.searcher
        self.version = model_version(self.folder)
        self._names = frozenset(self.items.names)

    def answers(
        self, queries: Sequence[str], k: int = 10, index: ItemIndex | None = None, *,
        repair: bool = False, count: bool = True,
    ) -> list[list[Answer]]:  # fmt: skip
        """The best items of each query, best first.

        Args:
            queries: Texts.
            k: Items per query.
            index: An index of the items, as `open_index` returns it, instead of the vectors that
                the model was exported with. Items that the export does not have are without text.
            repair: Encode candidates again that older versions wrote to the index.
            count: Count the answers in the index, for its `refresh`.
        """
        for query in queries:
            if not query.strip():
                raise ConfigError("an empty query finds nothing: write some words")
            if not is_text(query):
                raise ConfigError(f"the query {query!r:.80} is not UTF-8: write it in UTF-8")
        if index is None:
            found = self.model.search(list(queries), k)
            names, scores = found.items, found.scores
            versions = [[self.version] * len(line) for line in names]
        else:
            mended = Repair(self.encode, self.version) if repair else None
            vectors = self.model.encode_query_texts(list(queries))
            rows = index.search(vectors, k, repair=mended, count=count)
            names, scores, versions = rows.keys, rows.scores, rows.versions
        return [
            [
                Answer(
                    place + 1, float(line_scores[place]), name, *self._known_of(name),
                    line_versions[place],
                )
                for place, name in enumerate(line)
            ]
            for line, line_scores, line_versions in zip(names, scores, versions, strict=True)
        ]  # fmt: skip

    def _known_of(self, name: str) -> tuple[str, dict[str, str | int]]:
        """The text of an item and what else is known of it."""
        if name not in self._names:
            return "", {}
        return self.model.item_text(name), self.model.item_facts(name)

    def encode(self, names: list[str]) -> Any:
        """The vectors of items by this model, encoded from their texts."""
        return self.model.encode_item_texts([self.model.item_text(name) for name in names])

    def open_index(self, path: str | Path) -> ItemIndex:
        """An index of the items, opened for writing; made if there is none.

        A new index has the vectors that the model was exported with. In one of an older version of
        the model, items that it lacks are encoded and added, and items that the model lacks are
        deleted; the others remain as they are until they are refreshed.
        """
        folder, dim = Path(path), self.items.vectors.shape[1]
        if not (folder / MANIFEST).exists():
            index = ItemIndex.create(folder, dim)
            index.write(list(self.items.names), self.items.vectors, self.version)
            return index
        index = ItemIndex.open(folder, writable=True, dim=dim)
        own = set(self.items.names)
        index.delete([key for key in index.keys() if key not in own])  # noqa: SIM118
        new = [name for name in self.items.names if name not in index]
        for first in range(0, len(new), _ENCODED_AT_ONCE):
            part = new[first : first + _ENCODED_AT_ONCE]
            index.write(part, self.encode(part), self.version)
        return index


def model_version(folder: Path) -> str:
    """The version of an exported model: the start of its weights' SHA-256."""
    version: str = read_config(folder)["files"][WEIGHTS]["sha256"][:16]
    return version
