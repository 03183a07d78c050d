"""Scoring raw rows: checked, encoded as in training, and scored in batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.errors import DataError
from outsize.export.format import VOCABULARIES, described
from outsize.export.weights import all_tensors
from outsize.models import ClickModel

if TYPE_CHECKING:
    from outsize.data.encoding.bad_rows import BadRows
    from outsize.data.encoding.recipe import Recipe
    from outsize.data.encoding.row_encoder import EncodedRows, RowEncoder
    from outsize.data.encoding.sources import Chunk

_SHOWN = 5
_MIN_UNKNOWN = 3


class RowScorer:
    """Scores raw rows with a click model; the encoding of data is imported when it is first used.

    Args:
        make_encoder: Makes the encoder of raw values.
        batch_size: Rows scored at a time.
    """

    def __init__(self, make_encoder: Callable[[], RowEncoder], batch_size: int) -> None:
        self.batch_size = batch_size
        self._make_encoder = make_encoder

    @classmethod
    def of_folder(cls, folder: Path, config: Mapping[str, Any], batch_size: int) -> RowScorer:
        """The scorer of an exported model."""
        return cls(lambda: load_encoder(folder, config["encoding"]), batch_size)

    @cached_property
    def encoder(self) -> RowEncoder:
        """The encoder of raw values."""
        return self._make_encoder()

    def predict(
        self, model: ClickModel, rows: Any, *, logits: bool = False, skip_bad: bool = False
    ) -> NDArray[Any]:
        """The probability of label 1 for each row; see `ClickModel.predict`."""
        from outsize.data.encoding.frames import frame_chunks
        from outsize.data.encoding.rows import wanted_columns

        recipe = serving_recipe(self.encoder.recipe)
        numbers: list[NDArray[np.int64]] = []
        num_rows = 0

        def good_rows() -> Iterator[EncodedRows]:
            nonlocal num_rows
            unknown = _UnknownValues(self.encoder)
            for chunk in frame_chunks(rows, wanted_columns(recipe)):
                bad = _bad_rows()
                encoded, is_good = self.encode(chunk, None, recipe, bad, unknown)
                if bad.total and not skip_bad:
                    raise cannot_score_rows(bad, chunk.numbers[~is_good])
                numbers.append(chunk.numbers[is_good])
                num_rows += chunk.num_rows
                yield encoded
            unknown.warn()

        found = [result for result, _ in self.scored(model, good_rows())]
        scores = np.full(num_rows, np.nan, np.float32 if logits else np.float64)
        if found:
            values = torch.cat(found)
            plain = values.numpy() if logits else torch.sigmoid(values.double()).numpy()
            scores[np.concatenate(numbers)] = plain
        return scores

    def encode(
        self,
        chunk: Chunk,
        path: Path | None,
        recipe: Recipe,
        bad: BadRows,
        unknown: _UnknownValues | None = None,
    ) -> tuple[EncodedRows, NDArray[np.bool_]]:
        """Check and encode the rows of a chunk.

        Returns:
            The good rows, and a mask of them.
        """
        from outsize.data.encoding.rows import check_rows
        from outsize.data.encoding.spellings import as_trained

        columns = {
            name: as_trained(column, self.encoder.encoders[name])
            if name in self.encoder.encoders
            else column
            for name, column in chunk.columns.items()
        }
        rows, is_good = check_rows(replace(chunk, columns=columns), path, recipe, bad)
        return self.encoder.encode(rows, found=None if unknown is None else unknown.add), is_good

    def scored(
        self, model: ClickModel, parts: Iterable[EncodedRows]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and labels of encoded rows, in batches, in evaluation mode, on the CPU."""
        from outsize.data.encoding.row_encoder import regroup

        was_training = model.training
        device = next(chain(model.parameters(), model.buffers())).device
        if any(module.training for module in model.modules()):  # setting it takes longer
            model.eval()
        try:
            for rows in regroup(parts, self.batch_size):
                batch = self.encoder.batch(rows).to(device)
                with torch.no_grad():  # a decorator would leave it between two batches
                    logits = model(batch.dense, batch.ids).cpu()
                yield logits, batch.labels.cpu()
            model.embeddings.raise_if_bad_ids()
        finally:
            if was_training:
                model.train()


def serving_recipe(recipe: Recipe, labelled: bool = False) -> Recipe:
    """A recipe for new rows: nothing is held out or left out, and there may be no labels."""
    from outsize.data.encoding.recipe import LabelRule
    from outsize.data.encoding.splits import HashSplit

    label = recipe.label if labelled else LabelRule("")
    return replace(recipe, label=label, split=HashSplit(), subsample=1)


def load_encoder(folder: Path, facts: Mapping[str, Any]) -> RowEncoder:
    """The encoder of an exported model."""
    from outsize.data.encoding.encoder_files import encoder_from_state

    tensors = all_tensors(folder, VOCABULARIES)
    with described(folder, "the encoding"):
        return encoder_from_state(facts, tensors)


class _UnknownValues:
    """Watches for columns none of whose values is known, which are rarely meant.

    Args:
        encoder: The encoder of the rows.
    """

    def __init__(self, encoder: RowEncoder) -> None:
        from outsize.data.encoding.ids import VocabularyIds

        self._columns = {n for n, e in encoder.encoders.items() if isinstance(e, VocabularyIds)}
        self._num_values: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, column: str, ids: NDArray[np.int64], values: Any) -> None:
        """Take note of the ids of distinct values."""
        if column in self._columns and len(ids):
            if (ids > 0).any():
                self._columns.discard(column)
            self._num_values[column] = self._num_values.get(column, 0) + len(ids)
            self._examples.setdefault(column, str(values[0])[:40])

    def warn(self) -> None:
        """Warn of columns with several values and none that is known."""
        for column in sorted(self._columns & self._num_values.keys()):
            if self._num_values[column] >= _MIN_UNKNOWN:
                warnings.warn(
                    f"no value of column {column!r} occurs in the training data, such as "
                    f"{self._examples[column]!r}: is it written as it was there?",
                    stacklevel=4,
                )


def _bad_rows() -> BadRows:
    from outsize.data.encoding.bad_rows import BadRows

    return BadRows()


def cannot_score_rows(bad: BadRows, numbers: NDArray[np.int64]) -> DataError:
    """The error for rows in memory that cannot be scored, counted from 0."""
    shown = ", ".join(f"{number:,}" for number in numbers[:_SHOWN])
    if len(numbers) > _SHOWN:
        shown += f" and {len(numbers) - _SHOWN:,} more"
    kind, where = next(iter(bad.first.items()))
    return DataError(
        f"rows {shown} (counted from 0) cannot be scored: {where} is {kind}; correct them, or give "
        "skip_bad=True to get NaN for them"
    )
