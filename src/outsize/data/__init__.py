"""Data for each kind of task, and data made on the fly."""

from outsize.data.clicks import ClickBatch, ClickData, ClickDataConfig
from outsize.data.synthetic import SyntheticClicks, SyntheticConfig

DATA: dict[str, type[ClickDataConfig]] = {"synthetic": SyntheticConfig}

__all__ = [
    "DATA",
    "ClickBatch",
    "ClickData",
    "ClickDataConfig",
    "SyntheticClicks",
    "SyntheticConfig",
]
