"""The Criteo click logs: the Kaggle file, and the days of the Terabyte log.

Both are lines of a label, 13 counts and 26 hexadecimal values, separated by tabs, without a header.
Counts become log(x + 1) as DLRM takes them: missing and negative ones are 0. The last day is held
out, its first half to validate, its second to test. The Kaggle file has no day in it: seven days of
equal length are cut by position, as DLRM does. With several files each is a day.

"Clustering the Sketch" trains on an eighth of the Terabyte log with ids reduced by the sizes of the
Kaggle vocabularies: `subsample = 8` and `modulus` with 26 numbers (or one for all).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outsize.data.clicks import ClickDataConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.encoding import LabelRule, Recipe, VocabularyConfig, open_encoded
from outsize.data.encoding.splits import LastDaySplit

DENSE = tuple(f"I{i}" for i in range(1, 14))
CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))


@dataclass(frozen=True)
class CriteoConfig(ClickDataConfig):
    """A Criteo click log.

    Attributes:
        path: `train.txt` of the Kaggle data, or the days of the Terabyte log in order. A Parquet
            file has columns label, I1 … I13 and C1 … C26.
        vocabulary: How values become ids.
        modulus: Instead of a vocabulary: a value, read as a hexadecimal number, modulo this; one
            number for all columns or one for each.
        subsample: Take every so-manieth row.
        num_days: The number of days in a single file.
        max_bad_rows: The share of malformed rows that is skipped rather than refused.
        cache: Folder for encoded data; by default `.outsize-cache` beside the first file.
        verify: Compare every byte of encoded data with its checksum when it is opened.
        shuffle: Whether training rows come in another order each epoch.
        seed: Seed of the shuffling.
    """

    path: tuple[str, ...] = ("data/criteo/train.txt",)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    modulus: tuple[int, ...] = ()
    subsample: int = 1
    num_days: int = 7
    max_bad_rows: float = 0.001
    cache: str = ""
    verify: bool = False
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.recipe()

    def recipe(self) -> Recipe:
        """What decides the encoded data."""
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

    def build(self) -> EncodedClicks:  # noqa: D102
        folder = open_encoded(self.recipe(), self.cache, self.verify)
        return EncodedClicks(folder, self.shuffle, self.seed)
