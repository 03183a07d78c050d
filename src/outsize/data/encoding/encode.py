"""The two passes over the files: learn vocabularies and moments, then write encoded rows."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outsize.data.click_data import SPLITS
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encoding_progress import Advance
from outsize.data.encoding.good_rows import Rows
from outsize.data.encoding.id_counts import limit_held
from outsize.data.encoding.ids import Bags, VocabularyIds
from outsize.data.encoding.learned import load_learned, save_learned
from outsize.data.encoding.manifest import values_file
from outsize.data.encoding.recipe import Recipe, feature_name
from outsize.data.encoding.row_encoder import RowEncoder, make_encoders, make_moments
from outsize.data.encoding.rows import read_rows
from outsize.data.encoding.sources import first_of
from outsize.data.encoding.text_keys import Column
from outsize.data.encoding.writing import SplitFiles, ValueNames
from outsize.data.prefetch import prefetch
from outsize.errors import DataError
from outsize.interrupts import check_stop


def encode(
    files: list[Path], recipe: Recipe, folder: Path, advance: Advance, source: object = None
) -> dict[str, Any]:
    """Encode files into a folder, and return the content of its manifest.

    The first pass is skipped if the folder holds its saved state for the same `source`. Both passes
    stop between two blocks of a file when a stop is requested.
    """
    first = _FirstPass(recipe)
    if not first.recall(folder, source):
        for rows in prefetch(read_rows(files, recipe, first.bad), lambda rows: rows, depth=1):
            check_stop()
            first.observe(rows)
            advance("count", rows.num_bytes)
        first.finish()
        first.remember(folder, source)
    with ExitStack() as stack:
        second = _SecondPass(first, folder, stack)
        for rows in prefetch(read_rows(files, recipe, BadRows()), lambda rows: rows, depth=1):
            check_stop()
            second.write(rows)
            advance("encode", rows.num_bytes)
        return second.finish()


class _FirstPass:
    """Learns vocabularies, moments and the facts that the split needs."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.bad = BadRows()
        self.num_rows = 0
        self.splitter = recipe.split.build()
        self.encoders = make_encoders(recipe)
        self.moments = make_moments(recipe)

    def observe(self, rows: Rows) -> None:
        recipe = self.recipe
        self.num_rows += len(rows)
        self.splitter.observe(rows)
        for name, moments in self.moments.items():
            moments.add(rows.numbers[name])
        for name in recipe.categorical:
            text = rows.texts[name]
            self.encoders[name].observe(text.values, text.value_counts())
        for name in recipe.multi_valued:
            bags = Bags.split(rows.texts[name], recipe.separator, recipe.max_length)
            self.encoders[name].observe(bags.tokens.values, bags.token_counts())
        counted = [e.counts for e in self.encoders.values() if isinstance(e, VocabularyIds)]
        limit_held(counted, recipe.vocabulary.max_held)

    def remember(self, folder: Path, source: object) -> None:
        """Save what was learned, in case the second pass is interrupted."""
        facts = {"num_rows": self.num_rows, "bad": asdict(self.bad)}
        save_learned(folder, self._parts(), facts, source)

    def recall(self, folder: Path, source: object) -> bool:
        """Load what an interrupted encoding saved; returns whether there was anything to load."""
        facts = load_learned(folder, self._parts(), source)
        if facts is None:
            return False
        self.num_rows, self.bad = facts["num_rows"], BadRows(**facts["bad"])
        return True

    def _parts(self) -> dict[str, object]:
        encoders = {f"encoder/{name}": encoder for name, encoder in self.encoders.items()}
        moments = {f"moments/{name}": moment for name, moment in self.moments.items()}
        return {**encoders, **moments, "splitter": self.splitter}

    def finish(self) -> None:
        if not self.num_rows:
            if self.bad.total:
                raise DataError(f"no row can be used: {self.bad.describe()}")
            raise DataError(f"{first_of(self.recipe.paths)}: there is no row of data")
        self.bad.require_share(self.recipe.max_bad_rows)
        self.splitter.finish()
        for encoder in self.encoders.values():
            encoder.finish()


class _SecondPass:
    """Writes encoded rows, each to its split."""

    def __init__(self, first: _FirstPass, folder: Path, stack: ExitStack) -> None:
        self._first = first
        self._recipe = recipe = first.recipe
        self._encoder = RowEncoder(recipe, first.encoders, first.moments)
        largest = max(encoder.num_ids for encoder in first.encoders.values())
        self._id_type: Any = np.int32 if largest < 1 << 31 else np.int64
        bags = tuple(feature_name(name) for name in recipe.multi_valued)
        self._splits = [SplitFiles(folder, split, bags, stack) for split in SPLITS]
        self._names = {
            name: ValueNames(folder / values_file(feature_name(name)), encoder.num_ids, stack)
            for name, encoder in first.encoders.items()
            if isinstance(encoder, VocabularyIds)
        }

    def write(self, rows: Rows) -> None:
        assigned = self._first.splitter.assign(rows)
        encoded = self._encoder.encode(rows, self._id_type, self._add_names)
        for number, files in enumerate(self._splits):
            mine = encoded.take(assigned == number)
            files.append(mine.labels, mine.dense, mine.ids, mine.bags)

    def finish(self) -> dict[str, Any]:
        for split, files in zip(SPLITS, self._splits, strict=True):
            alias = split == "test" and self._recipe.split.test_is_validation
            if files.num_rows == 0 and not alias:
                raise DataError(
                    f"no rows in the {split} split of {self._first.num_rows:,} rows: change "
                    "the section split"
                )
        written = {name: facts for files in self._splits for name, facts in files.close().items()}
        for name, names in self._names.items():
            written[values_file(feature_name(name))] = names.close()
        encoders, bad = self._first.encoders, self._first.bad
        return {
            "num_dense": len(self._recipe.dense_columns),
            "id_type": np.dtype(self._id_type).name,
            "categorical": [feature_name(name) for name in self._recipe.categorical],
            "multi_valued": [feature_name(name) for name in self._recipe.multi_valued],
            "num_ids": {feature_name(name): encoder.num_ids for name, encoder in encoders.items()},
            "num_examples": {
                split: files.num_rows for split, files in zip(SPLITS, self._splits, strict=True)
            },
            "bad_rows": {"num_rows": bad.num_rows, "counts": bad.counts, "first": bad.first},
            "files": written,
            "moments": {name: list(m.state()) for name, m in self._first.moments.items()},
        }

    def _add_names(self, name: str, ids: NDArray[np.int64], values: Column) -> None:
        """Add new values to the file of values."""
        if name in self._names:
            self._names[name].add(ids, values)
