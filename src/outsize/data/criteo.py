"""The Criteo click logs: the Kaggle file, and the days of the Terabyte log.

Both are lines of a label, 13 counts and 26 hexadecimal values, separated by tabs, without a header.
Counts become log(x + 1) as DLRM takes them: missing and negative ones are 0. The last day is held
out, its first half to validate, its second to test. The Kaggle file has no day in it: seven days of
equal length are cut by position, as DLRM does. With several files each is a day.

"Clustering the Sketch" trains on an eighth of the Terabyte log with ids reduced by the sizes of the
Kaggle vocabularies: `subsample = 8` and `modulus` with 26 numbers (or one for all).
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
        subsample: Take every so-manieth row.
        num_days: The number of days in a single file.
    """

    path: tuple[str, ...] = ("data/criteo/train.txt",)
    modulus: tuple[int, ...] = ()
    subsample: int = 1
    num_days: int = 7

    def recipe(self) -> Recipe:  # noqa: D102
        return Recipe(
            paths=self.path,
            label=LabelRule("label"),
            log1p=DENSE,
            categorical=CATEGORICAL,
            vocabulary=self.vocabulary,
            modulus=self.modulus,
            split=LastDaySplit(self.num_days),
            columns=("label", *DENSE, *CATEGORICAL),
            delimiter="\t",
            quoted=False,
            subsample=self.subsample,
            max_bad_rows=self.max_bad_rows,
        )
