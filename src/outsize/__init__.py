"""Train embedding models that outsize your memory.

Three published systems in one library: compressed tables (CCE), row caches with bounded staleness
(HET), and negative caches for retrieval. Names are imported when they are first used, so that
`import outsize` costs little more than `import torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outsize.version import __version__

if TYPE_CHECKING:  # the same names as below, for type checkers; a test compares them
    from outsize import data as data
    from outsize import metrics as metrics
    from outsize import models as models
    from outsize import negatives as negatives
    from outsize import stores as stores
    from outsize import tables as tables
    from outsize import training as training
    from outsize.collection import EmbeddingCollection as EmbeddingCollection
    from outsize.contracts import Bag as Bag
    from outsize.contracts import Codes as Codes
    from outsize.contracts import EmbeddingTable as EmbeddingTable
    from outsize.contracts import RowStore as RowStore
    from outsize.data import CLICK_DATA as CLICK_DATA
    from outsize.data import DATA as DATA
    from outsize.data import RETRIEVAL_DATA as RETRIEVAL_DATA
    from outsize.data import ClickBatch as ClickBatch
    from outsize.data import ClickData as ClickData
    from outsize.data import ClickDataConfig as ClickDataConfig
    from outsize.data import RetrievalData as RetrievalData
    from outsize.data import RetrievalDataConfig as RetrievalDataConfig
    from outsize.errors import OutsizeError as OutsizeError
    from outsize.export import load_exported as load_exported
    from outsize.export import write_exported as write_exported
    from outsize.models import CLICK_MODELS as CLICK_MODELS
    from outsize.models import DCN as DCN
    from outsize.models import DLRM as DLRM
    from outsize.models import GMF as GMF
    from outsize.models import MODELS as MODELS
    from outsize.models import RETRIEVAL_MODELS as RETRIEVAL_MODELS
    from outsize.models import ClickModel as ClickModel
    from outsize.models import ClickModelConfig as ClickModelConfig
    from outsize.models import DCNv2 as DCNv2
    from outsize.models import DeepFM as DeepFM
    from outsize.models import Logistic as Logistic
    from outsize.models import RetrievalModel as RetrievalModel
    from outsize.models import RetrievalModelConfig as RetrievalModelConfig
    from outsize.models import TwoTower as TwoTower
    from outsize.models import WideDeep as WideDeep
    from outsize.negatives import NEGATIVES as NEGATIVES
    from outsize.negatives import CachedSoftmax as CachedSoftmax
    from outsize.negatives import Comparison as Comparison
    from outsize.negatives import Draw as Draw
    from outsize.negatives import HeldItems as HeldItems
    from outsize.negatives import ItemSource as ItemSource
    from outsize.negatives import LossReport as LossReport
    from outsize.negatives import NegativeCache as NegativeCache
    from outsize.negatives import NegativeCacheLoss as NegativeCacheLoss
    from outsize.negatives import NegativesConfig as NegativesConfig
    from outsize.negatives import NegativesLoss as NegativesLoss
    from outsize.negatives import ShardedNegativeCache as ShardedNegativeCache
    from outsize.negatives import Temperature as Temperature
    from outsize.negatives import Upkeep as Upkeep
    from outsize.negatives import cached_softmax as cached_softmax
    from outsize.negatives import in_chunks as in_chunks
    from outsize.negatives import load_cache as load_cache
    from outsize.negatives import log_inclusion as log_inclusion
    from outsize.negatives import save_cache as save_cache
    from outsize.optimizers import ROW_OPTIMIZERS as ROW_OPTIMIZERS
    from outsize.optimizers import RowAdagrad as RowAdagrad
    from outsize.optimizers import RowAdam as RowAdam
    from outsize.optimizers import RowFullAdagrad as RowFullAdagrad
    from outsize.optimizers import RowOptimizer as RowOptimizer
    from outsize.optimizers import RowSGD as RowSGD
    from outsize.row_files import load_rows as load_rows
    from outsize.row_files import save_rows as save_rows
    from outsize.spec import Budget as Budget
    from outsize.spec import FeatureSpec as FeatureSpec
    from outsize.spec import Init as Init
    from outsize.spec import MemoryUse as MemoryUse
    from outsize.spec import TableSpec as TableSpec
    from outsize.stores import EVICTION as EVICTION
    from outsize.stores import STORES as STORES
    from outsize.stores import WIRES as WIRES
    from outsize.stores import CachedStore as CachedStore
    from outsize.stores import LocalStore as LocalStore
    from outsize.stores import ReplicatedStore as ReplicatedStore
    from outsize.stores import ServedStore as ServedStore
    from outsize.stores import ShardedStore as ShardedStore
    from outsize.stores.eviction import EvictionPolicy as EvictionPolicy
    from outsize.stores.wire import Wire as Wire
    from outsize.tables import TABLES as TABLES
    from outsize.tables import CCETable as CCETable
    from outsize.tables import CEConcatTable as CEConcatTable
    from outsize.tables import CEHybridTable as CEHybridTable
    from outsize.tables import CircularTable as CircularTable
    from outsize.tables import DHETable as DHETable
    from outsize.tables import FullTable as FullTable
    from outsize.tables import HashEmbeddingTable as HashEmbeddingTable
    from outsize.tables import HashTable as HashTable
    from outsize.tables import LowRankTable as LowRankTable
    from outsize.tables import PointerDiagnosis as PointerDiagnosis
    from outsize.tables import QRTable as QRTable
    from outsize.tables import QuantizedTable as QuantizedTable
    from outsize.tables import RobeTable as RobeTable
    from outsize.tables import TensorTrainTable as TensorTrainTable
    from outsize.tables import build_table as build_table
    from outsize.tables import build_tables as build_tables
    from outsize.tables import diagnose_pointers as diagnose_pointers
    from outsize.tables import quantize as quantize
    from outsize.training import RunConfig as RunConfig
    from outsize.training import RunResult as RunResult
    from outsize.training import export_run as export_run
    from outsize.training import load_config as load_config
    from outsize.training import train as train

_HOMES = {
    name: home
    for home, names in {
        "collection": ("EmbeddingCollection",),
        "contracts": (
            "Bag",
            "Codes",
            "EmbeddingTable",
            "RowStore",
        ),
        "data": (
            "CLICK_DATA",
            "DATA",
            "RETRIEVAL_DATA",
            "ClickBatch",
            "ClickData",
            "ClickDataConfig",
            "RetrievalData",
            "RetrievalDataConfig",
        ),
        "errors": ("OutsizeError",),
        "export": (
            "load_exported",
            "write_exported",
        ),
        "models": (
            "CLICK_MODELS",
            "DCN",
            "DLRM",
            "GMF",
            "MODELS",
            "RETRIEVAL_MODELS",
            "ClickModel",
            "ClickModelConfig",
            "DCNv2",
            "DeepFM",
            "Logistic",
            "RetrievalModel",
            "RetrievalModelConfig",
            "TwoTower",
            "WideDeep",
        ),
        "negatives": (
            "NEGATIVES",
            "CachedSoftmax",
            "Comparison",
            "Draw",
            "HeldItems",
            "ItemSource",
            "LossReport",
            "NegativeCache",
            "NegativeCacheLoss",
            "NegativesConfig",
            "NegativesLoss",
            "ShardedNegativeCache",
            "Temperature",
            "Upkeep",
            "cached_softmax",
            "in_chunks",
            "load_cache",
            "log_inclusion",
            "save_cache",
        ),
        "optimizers": (
            "ROW_OPTIMIZERS",
            "RowAdagrad",
            "RowAdam",
            "RowFullAdagrad",
            "RowOptimizer",
            "RowSGD",
        ),
        "row_files": (
            "load_rows",
            "save_rows",
        ),
        "spec": (
            "Budget",
            "FeatureSpec",
            "Init",
            "MemoryUse",
            "TableSpec",
        ),
        "stores": (
            "EVICTION",
            "STORES",
            "WIRES",
            "CachedStore",
            "LocalStore",
            "ReplicatedStore",
            "ServedStore",
            "ShardedStore",
        ),
        "stores.eviction": ("EvictionPolicy",),
        "stores.wire": ("Wire",),
        "tables": (
            "TABLES",
            "CCETable",
            "CEConcatTable",
            "CEHybridTable",
            "CircularTable",
            "DHETable",
            "FullTable",
            "HashEmbeddingTable",
            "HashTable",
            "LowRankTable",
            "PointerDiagnosis",
            "QRTable",
            "QuantizedTable",
            "RobeTable",
            "TensorTrainTable",
            "build_table",
            "build_tables",
            "diagnose_pointers",
            "quantize",
        ),
        "training": (
            "RunConfig",
            "RunResult",
            "export_run",
            "load_config",
            "train",
        ),
    }.items()
    for name in names
}
_ROOMS = ("data", "metrics", "models", "negatives", "stores", "tables", "training")

__all__ = [*_HOMES, *_ROOMS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"outsize.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"outsize.{name}")
    else:
        raise AttributeError(f"module 'outsize' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
