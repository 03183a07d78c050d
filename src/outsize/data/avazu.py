"""The Avazu click log: mobile advertisements over ten days, a CSV file with a header.

`hour`, written YYMMDDHH, becomes two features, the hour of the day and the weekday. Everything else
is categorical but `id`, which is another in every row. The last tenth of the rows by hour tests,
the tenth before it validates: with ten days about a day each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outsize.data.clicks import ClickDataConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.encoding import LabelRule, Recipe, VocabularyConfig, open_encoded
from outsize.data.encoding.splits import HashSplit, SplitConfig, TimeSplit

CATEGORICAL = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    *(f"C{i}" for i in range(14, 22)),
)  # fmt: skip


@dataclass(frozen=True)
class AvazuConfig(ClickDataConfig):
    """The Avazu click log.

    Attributes:
        path: `train.csv` of the Kaggle data, or a Parquet file with its columns.
        vocabulary: How values become ids.
        split: "time" as above, or "hash" for rows at random.
        validation: Share of rows that validate.
        test: Share that tests.
        subsample: Take every so-manieth row.
        max_bad_rows: The share of malformed rows that is skipped rather than refused.
        cache: Folder for encoded data; by default `.outsize-cache` beside the first file.
        verify: Compare every byte of encoded data with its checksum when it is opened.
        shuffle: Whether training rows come in another order each epoch.
        seed: Seed of the shuffling.
    """

    path: tuple[str, ...] = ("data/avazu/train.csv",)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    split: Literal["time", "hash"] = "time"
    validation: float = 0.1
    test: float = 0.1
    subsample: int = 1
    max_bad_rows: float = 0.001
    cache: str = ""
    verify: bool = False
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.recipe()

    def recipe(self) -> Recipe:
        """What decides the encoded data."""
        split: SplitConfig = TimeSplit("hour", validation=self.validation, test=self.test)
        if self.split == "hash":
            split = HashSplit(validation=self.validation, test=self.test)
        return Recipe(
            paths=self.path,
            label=LabelRule("click"),
            categorical=("hour_of_day", "weekday", *CATEGORICAL),
            vocabulary=self.vocabulary,
            split=split,
            subsample=self.subsample,
            derive="avazu-hour",
            max_bad_rows=self.max_bad_rows,
        )

    def build(self) -> EncodedClicks:  # noqa: D102
        folder = open_encoded(self.recipe(), self.cache, self.verify)
        return EncodedClicks(folder, self.shuffle, self.seed)
