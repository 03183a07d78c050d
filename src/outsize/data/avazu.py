"""The Avazu click log: mobile advertisements over ten days, a CSV file with a header.

`hour`, written YYMMDDHH, becomes two features: the hour of the day and the weekday. All other
columns are categorical, except `id`, which is unique per row and ignored. By time, the last tenth
of the rows is the test set and the tenth before it the validation set: about one of the ten days
each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outsize.data.encoded_config import EncodedConfig
from outsize.data.encoding import LabelRule, Recipe
from outsize.data.encoding.splits import HashSplit, SplitConfig, TimeSplit

CATEGORICAL = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    *(f"C{i}" for i in range(14, 22)),
)  # fmt: skip


@dataclass(frozen=True)
class AvazuConfig(EncodedConfig):
    """The Avazu click log.

    Attributes:
        path: `train.csv` of the Kaggle data, or a Parquet file with its columns.
        split: "time" as above, or "hash" for random rows.
        validation: Share of rows in the validation set.
        test: Share of rows in the test set.
        subsample: Keep every n-th row.
    """

    path: tuple[str, ...] = ("data/avazu/train.csv",)
    split: Literal["time", "hash"] = "time"
    validation: float = 0.1
    test: float = 0.1
    subsample: int = 1

    def recipe(self) -> Recipe:  # noqa: D102
        split: SplitConfig = TimeSplit("hour", validation=self.validation, test=self.test)
        if self.split == "hash":
            split = HashSplit(validation=self.validation, test=self.test)
        return Recipe.of(
            self,
            paths=self.path,
            label=LabelRule("click"),
            categorical=("hour_of_day", "weekday", *CATEGORICAL),
            split=split,
            derive="avazu-hour",
        )
