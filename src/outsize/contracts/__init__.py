"""The contracts of tables and stores, on which all higher layers rely."""

from outsize.contracts.bags import Bag, Codes, pool_features, pool_rows
from outsize.contracts.features import FeatureInput, FeatureSelection
from outsize.contracts.ids import IdGuard
from outsize.contracts.layout import RowLayout, TablePart
from outsize.contracts.messages import RowCounts, RowReply, RowUpdate
from outsize.contracts.neighborhood import Edges, Neighborhood
from outsize.contracts.recluster import PlannedRecluster, ReclusterReport
from outsize.contracts.store import RowStore
from outsize.contracts.table import EmbeddingTable
from outsize.contracts.transport import Transport
from outsize.ranks.shard import Shard

__all__ = [
    "Bag",
    "Codes",
    "Edges",
    "EmbeddingTable",
    "FeatureInput",
    "FeatureSelection",
    "IdGuard",
    "Neighborhood",
    "PlannedRecluster",
    "ReclusterReport",
    "RowCounts",
    "RowLayout",
    "RowReply",
    "RowStore",
    "RowUpdate",
    "Shard",
    "TablePart",
    "Transport",
    "pool_features",
    "pool_rows",
]
