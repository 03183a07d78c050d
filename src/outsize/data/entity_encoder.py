"""From raw values to the inputs of a tower: how queries, or items, were encoded in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.ids import UNKNOWN, CodedText, VocabularyIds
from outsize.data.encoding.moments import Moments
from outsize.data.encoding.recipe import LabelRule, Recipe
from outsize.data.encoding.text_keys import Column, text_keys
from outsize.json_files import OneOf, SchemaError, Whole, check

Kind = Literal["id", "value", "bag", "number"]
_COLUMN = {"column": str, "feature": str, "type": str, "num_ids": OneOf(None, Whole(1))}
_SCHEMA = {"columns": [_COLUMN], "separator": str, "max_length": Whole(), "moments": {}}


@dataclass(frozen=True)
class EntityColumn:
    """How one column was encoded.

    Attributes:
        column: The raw column.
        feature: The feature it became.
        kind: "id" for the column that identifies the entity (ids from 0 on), "value" and "bag" for
            one or several values (ids from 1 on; 0 is missing or unknown), "number".
        vocabulary: The ids of its values; `None` for numbers.
        moments: The mean and deviation of numbers.
    """

    column: str
    feature: str
    kind: Kind
    vocabulary: VocabularyIds | None = None
    moments: Moments | None = None

    @classmethod
    def of_values(cls, column: str, feature: str, kind: Kind, values: Column) -> EntityColumn:
        """A column whose values are given in the order of their ids."""
        vocabulary = VocabularyIds(1, 0)
        vocabulary.set_keys(text_keys(values))
        return cls(column, feature, kind, vocabulary)


class EntityEncoder:
    """Encodes rows of raw values as the features of queries or items.

    Args:
        columns: The columns, that of the entity's own id first.
        separator: Separator between the values of a bag.
        max_length: Maximum number of values per bag; 0 for no limit.
    """

    def __init__(self, columns: Sequence[EntityColumn], separator: str, max_length: int) -> None:
        self.columns = tuple(columns)
        self.separator = separator
        self.max_length = max_length

    def only(self, features: Sequence[str]) -> EntityEncoder:
        """The encoder of the columns of some features."""
        selected = [column for column in self.columns if column.feature in features]
        return EntityEncoder(selected, self.separator, self.max_length)

    def recipe(self) -> Recipe:
        """What is read, as a recipe for the checks of rows."""
        names = {c.column: c.kind for c in self.columns}
        return Recipe(
            paths=("rows",),
            label=LabelRule(""),
            standardize=tuple(name for name, kind in names.items() if kind == "number"),
            categorical=tuple(name for name, kind in names.items() if kind != "number"),
            separator=self.separator or "|",
        )

    def encode(
        self, rows: Rows, numbers: NDArray[np.int64], bad: BadRows, where: str = ""
    ) -> tuple[dict[str, Tensor], NDArray[np.bool_]]:
        """The features of rows, and a mask of those that can be encoded.

        An entity that the training data does not have makes a bad row.

        Args:
            rows: Rows that passed all checks.
            numbers: Their numbers, for messages.
            bad: Counts bad rows.
            where: The file they are from, for messages.
        """
        features: dict[str, Tensor] = {}
        is_good = np.ones(len(rows), bool)
        for column in self.columns:
            if column.kind == "number":
                assert column.moments is not None
                values = column.moments.standardize(rows.numbers[column.column])
                features[column.feature] = torch.from_numpy(np.nan_to_num(values, nan=0.0)).float()
                continue
            text = rows.texts[column.column]
            assert column.vocabulary is not None
            if column.kind == "bag":
                features[column.feature] = self._bags(text, column.vocabulary)
                continue
            ids = np.append(column.vocabulary.ids_of(text.values), UNKNOWN)[text.codes]
            if column.kind == "id":
                unknown = (ids == UNKNOWN) & is_good
                if unknown.any():
                    place = int(np.flatnonzero(unknown)[0])
                    code = int(text.codes[place])
                    shown = "none" if code < 0 else f"{text.values[code].as_py()!r:.60}"
                    kind = f"a value of {column.column!r} that the training data does not have"
                    first = f"{where}row {numbers[place]:,}: {shown}"
                    bad.add(kind, int(unknown.sum()), first)
                is_good &= ~unknown
                ids = np.maximum(ids - 1, 0)
            features[column.feature] = torch.from_numpy(ids)
        mask = torch.from_numpy(is_good)
        return {name: values[mask] for name, values in features.items()}, is_good

    def _bags(self, text: CodedText, vocabulary: VocabularyIds) -> Tensor:
        import pyarrow as pa

        lists = split_words(text.values.to_pylist(), self.separator, self.max_length)
        words = pa.array([word for found in lists for word in found], pa.large_string())
        ids = iter(vocabulary.ids_of(words).tolist())
        bags = np.full((len(lists) + 1, max([1, *map(len, lists)])), -1)
        for row, found in enumerate(lists):
            bags[row, : len(found)] = [next(ids) for _ in found]
        return torch.from_numpy(bags[text.codes])

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain facts and tensors that `from_state` takes."""
        facts = [
            {
                "column": column.column,
                "feature": column.feature,
                "type": column.kind,
                "num_ids": None if column.vocabulary is None else column.vocabulary.num_ids,
            }
            for column in self.columns
        ]
        moments = {c.feature: list(c.moments.state()) for c in self.columns if c.moments}
        tensors = {
            f"{column.feature}.keys": torch.from_numpy(
                column.vocabulary.keys_by_id().view(np.int64)
            )
            for column in self.columns
            if column.vocabulary is not None
        }
        return {
            "columns": facts,
            "moments": moments,
            "separator": self.separator,
            "max_length": self.max_length,
        }, tensors

    @classmethod
    def from_state(cls, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> EntityEncoder:
        """The encoder that `state` described; raises a `SchemaError` if parts disagree."""
        check(facts, _SCHEMA)
        columns = []
        for fact in facts["columns"]:
            feature, kind = fact["feature"], fact["type"]
            if kind not in ("id", "value", "bag", "number"):
                raise SchemaError(f"{feature!r} is of no kind {kind!r:.20}")
            if kind == "number":
                state = facts["moments"].get(feature)
                check(state, (Whole(), float, float), f"moments.{feature}")
                columns.append(EntityColumn(fact["column"], feature, kind, moments=Moments(*state)))
                continue
            keys = tensors.get(f"{feature}.keys")
            if keys is None or keys.dtype != torch.int64 or keys.dim() != 1:
                raise SchemaError(f"'{feature}.keys' is missing, or no int64 tensor of 1 axis")
            vocabulary = VocabularyIds(1, 0)
            vocabulary.set_keys(keys.numpy().view(np.uint64))
            columns.append(EntityColumn(fact["column"], feature, kind, vocabulary))
        return cls(columns, facts["separator"], facts["max_length"])


def split_words(texts: Sequence[str], separator: str, max_length: int) -> list[list[str]]:
    """The values of multi-valued texts: stripped, not empty, and the first `max_length` of each."""
    lists = [text.split(separator) for text in texts]
    lists = [[word.strip() for word in words if word.strip()] for words in lists]
    return [words[: max_length or None] for words in lists]
