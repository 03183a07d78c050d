"""MovieLens ratings as click data, by the protocol of "Clustering the Sketch".

A rating of 4 or more is label 1, a rating of exactly 3 is dropped, and any other is label 0. The
last two remaining ratings of each user by time are held out (ties in the order of the file): the
earlier one for validation, the later one for the test. With `held_out = "validation"`, as in the
paper, both are used for validation and again for the test.

Reads `ratings.dat` of ml-1m (separated by `::`), `ratings.csv` of ml-20m and later, and tables with
columns user_id, movie, rating and timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outsize.bounds import require_text
from outsize.data.encoded_config import EncodedConfig
from outsize.data.encoding import LabelRule, Recipe
from outsize.data.encoding.splits import LastOfEachSplit
from outsize.spec import Pooling


@dataclass(frozen=True)
class MovieLensConfig(EncodedConfig):
    """MovieLens ratings.

    Attributes:
        path: The ratings: `.dat`, `.csv`, or a table such as a Parquet file.
        held_out: "split", or "validation" to use both held-out ratings for validation.
        side: Additional categorical columns of a table.
        side_multi_valued: Additional columns with several values per row, such as genres.
        separator: Separator between the values of a multi-valued column.
        pooling: How their bags are pooled.
    """

    path: str = "data/ml-1m/ratings.dat"
    held_out: Literal["split", "validation"] = "split"
    side: tuple[str, ...] = ()
    side_multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    pooling: Pooling = "mean"

    def __post_init__(self) -> None:
        require_text(self, "path", "side", "side_multi_valued")
        super().__post_init__()

    def recipe(self) -> Recipe:  # noqa: D102
        path = Path(self.path)
        user, movie, delimiter = "user_id", "movie", ""
        columns: tuple[str, ...] = ()
        if path.suffix == ".dat":
            # A delimiter is one character, so `::` leaves an empty column between two others.
            columns = ("user_id", "_1", "movie", "_2", "rating", "_3", "timestamp")
            delimiter = ":"
        elif path.name.split(".")[:2] == ["ratings", "csv"]:
            user, movie = "userId", "movieId"
        return Recipe.of(
            self,
            paths=(self.path,),
            label=LabelRule("rating", positive_from=4, dropped=(3.0,)),
            categorical=(user, movie, *self.side),
            multi_valued=self.side_multi_valued,
            split=LastOfEachSplit(user, "timestamp", self.held_out),
            columns=columns,
            delimiter=delimiter,
        )

    def bag_pooling(self) -> Pooling:  # noqa: D102
        return self.pooling
