"""The Criteo click logs: the Kaggle file, and the days of the Terabyte log.

Each line has a label, 13 counts and 26 hexadecimal values, separated by tabs, without a header.
Counts become log(x + 1) as in DLRM; missing and negative ones become 0. The last day is held out:
its first half is the validation set, its second half the test set. The Kaggle file has no column
for the day: it is cut by position into seven days of equal length, as in DLRM. With several files,
each file is a day.

"Clustering the Sketch" trains on an eighth of the Terabyte log, with ids modulo the sizes of the
Kaggle vocabularies: `subsample = 8`, and `modulus` with 26 numbers (or one for all).
"""

from __future__ import annotations

from dataclasses import dataclass

from outsize.data.encoded_config import EncodedConfig
from outsize.data.encoding import LabelRule, Recipe
from outsize.data.encoding.splits import LastDaySplit

DENSE = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))


@dataclass(frozen=True)
class CriteoConfig(EncodedConfig):
    """A Criteo click log.

    Attributes:
        path: `train.txt` of the Kaggle data, or the days of the Terabyte log in order. A Parquet
            file has columns label, I1 … I13 and C1 … C26.
        modulus: Instead of a vocabulary: a value, read as a hexadecimal number, modulo this; one
            number for all columns or one for each.
        subsample: Keep every n-th row.
        num_days: The number of days in a single file.
    """

    path: tuple[str, ...] = ("data/criteo/train.txt",)
    modulus: tuple[int, ...] = ()
    subsample: int = 1
    num_days: int = 7

    def recipe(self) -> Recipe:  # noqa: D102
        return Recipe.of(
            self,
            paths=self.path,
            label=LabelRule("label"),
            log1p=DENSE,
            categorical=CATEGORICAL,
            split=LastDaySplit(self.num_days),
            columns=("label", *DENSE, *CATEGORICAL),
            delimiter="\t",
            quoted=False,
        )
