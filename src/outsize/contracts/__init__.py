"""What a table and a store promise; everything above relies on these and nothing more."""

from outsize.contracts.bags import Bag, pool_rows
from outsize.contracts.codes import Codes
from outsize.contracts.counts import RowCounts
from outsize.contracts.features import FeatureInput, FeatureSelection
from outsize.contracts.ids import IdGuard
from outsize.contracts.layout import RowLayout
from outsize.contracts.messages import RowReply, RowUpdate
from outsize.contracts.parts import TablePart
from outsize.contracts.recluster import PlannedRecluster, ReclusterReport
from outsize.contracts.store import RowStore
from outsize.contracts.table import EmbeddingTable
from outsize.ranks.shard import Shard

__all__ = [
    "Bag",
    "Codes",
    "EmbeddingTable",
    "FeatureInput",
    "FeatureSelection",
    "IdGuard",
    "PlannedRecluster",
    "ReclusterReport",
    "RowCounts",
    "RowLayout",
    "RowReply",
    "RowStore",
    "RowUpdate",
    "Shard",
    "TablePart",
    "pool_rows",
]
