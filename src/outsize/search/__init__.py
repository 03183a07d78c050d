"""Search: an item index on disk whose rows know which model encoded them."""

from outsize.search.approximate import ApproximateSearch
from outsize.search.correction import LinearMap, fit_map
from outsize.search.item_index import FoundRows, ItemIndex
from outsize.search.refreshing import REFRESH_ORDERS, RefreshReport
from outsize.search.repairing import Repair

__all__ = [
    "REFRESH_ORDERS",
    "ApproximateSearch",
    "FoundRows",
    "ItemIndex",
    "LinearMap",
    "RefreshReport",
    "Repair",
    "fit_map",
]
