"""Columns derived from other columns, computed once per distinct value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from outsize.data.encoding.ids import CodedText

Made = tuple[dict[str, CodedText], NDArray[np.bool_] | None]


@dataclass(frozen=True)
class Derived:
    """A function that derives columns.

    Attributes:
        needs: The columns it reads.
        makes: The columns it makes.
        make: The function; it also returns a mask of rows that it could not parse, if any.
    """

    needs: tuple[str, ...]
    makes: tuple[str, ...]
    make: Callable[[Mapping[str, CodedText]], Made]


def _nothing(columns: Mapping[str, CodedText]) -> Made:
    return {}, None


def _hour_parts(columns: Mapping[str, CodedText]) -> Made:
    """Avazu's `hour`, written YYMMDDHH, as the hour of the day and the weekday (0 is Monday)."""
    import pyarrow as pa

    hour = columns["hour"]
    times = [_read_hour(value) for value in hour.values.to_pylist()]
    wrong = np.array([time is None for time in times] + [True])[hour.codes]
    made = {
        "hour_of_day": [f"{time.hour:02d}" if time else "" for time in times],
        "weekday": [str(time.weekday()) if time else "" for time in times],
    }
    texts = {
        name: CodedText(hour.codes, pa.array(values, pa.large_string()))
        for name, values in made.items()
    }
    return texts, wrong


def _read_hour(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%y%m%d%H") if len(text) == 8 else None
    except ValueError:
        return None


DERIVED: dict[str, Derived] = {
    "": Derived((), (), _nothing),
    "avazu-hour": Derived(("hour",), ("hour_of_day", "weekday"), _hour_parts),
}
