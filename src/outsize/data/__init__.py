"""Data for each kind of task: click logs read from files, and data made on the fly."""

from outsize.data.avazu import AvazuConfig
from outsize.data.clicks import ClickBatch, ClickData, ClickDataConfig
from outsize.data.criteo import CriteoConfig
from outsize.data.encoded import EncodedClicks
from outsize.data.movielens import MovieLensConfig
from outsize.data.synthetic import SyntheticClicks, SyntheticConfig
from outsize.data.tabular import TabularConfig

DATA: dict[str, type[ClickDataConfig]] = {
    "synthetic": SyntheticConfig,
    "tabular": TabularConfig,
    "criteo": CriteoConfig,
    "avazu": AvazuConfig,
    "movielens": MovieLensConfig,
}

__all__ = [
    "DATA",
    "AvazuConfig",
    "ClickBatch",
    "ClickData",
    "ClickDataConfig",
    "CriteoConfig",
    "EncodedClicks",
    "MovieLensConfig",
    "SyntheticClicks",
    "SyntheticConfig",
    "TabularConfig",
]
