"""Models that read an `EmbeddingCollection`, whatever its rows are made of."""

from collections.abc import MutableMapping

from outsize.models.click_model import ClickModel, ClickModelConfig
from outsize.models.dcn import DCN, DCNConfig
from outsize.models.dcnv2 import DCNv2, DCNv2Config
from outsize.models.deepfm import DeepFM, DeepFMConfig
from outsize.models.dlrm import DLRM, DLRMConfig
from outsize.models.gmf import GMF, GMFConfig
from outsize.models.graph_model import GraphModel, GraphModelConfig
from outsize.models.graphsage import GraphSAGE, GraphSAGEConfig
from outsize.models.logistic import Logistic, LogisticConfig
from outsize.models.retrieval_model import RetrievalModel, RetrievalModelConfig
from outsize.models.text import (
    SentenceTransformerConfig,
    SentenceTransformerModel,
    TextConfig,
    TextEncoder,
    TextModel,
    TextModelConfig,
)
from outsize.models.two_tower import TwoTower, TwoTowerConfig
from outsize.models.wide_deep import WideDeep, WideDeepConfig
from outsize.registries import ByTask

CLICK_MODELS: dict[str, type[ClickModelConfig]] = {
    "logistic": LogisticConfig,
    "dlrm": DLRMConfig,
    "wide-deep": WideDeepConfig,
    "deepfm": DeepFMConfig,
    "dcn": DCNConfig,
    "dcnv2": DCNv2Config,
    "gmf": GMFConfig,
}
RETRIEVAL_MODELS: dict[str, type[RetrievalModelConfig]] = {
    "two-tower": TwoTowerConfig,
    "text": TextConfig,
    "sentence-transformers": SentenceTransformerConfig,
}
GRAPH_MODELS: dict[str, type[GraphModelConfig]] = {"graphsage": GraphSAGEConfig}
MODELS: MutableMapping[
    str, type[ClickModelConfig] | type[RetrievalModelConfig] | type[GraphModelConfig]
] = ByTask(click=CLICK_MODELS, retrieval=RETRIEVAL_MODELS, graph=GRAPH_MODELS)

__all__ = [
    "CLICK_MODELS",
    "DCN",
    "DLRM",
    "GMF",
    "GRAPH_MODELS",
    "MODELS",
    "RETRIEVAL_MODELS",
    "ClickModel",
    "ClickModelConfig",
    "DCNConfig",
    "DCNv2",
    "DCNv2Config",
    "DLRMConfig",
    "DeepFM",
    "DeepFMConfig",
    "GMFConfig",
    "GraphModel",
    "GraphModelConfig",
    "GraphSAGE",
    "GraphSAGEConfig",
    "Logistic",
    "LogisticConfig",
    "RetrievalModel",
    "RetrievalModelConfig",
    "SentenceTransformerConfig",
    "SentenceTransformerModel",
    "TextConfig",
    "TextEncoder",
    "TextModel",
    "TextModelConfig",
    "TwoTower",
    "TwoTowerConfig",
    "WideDeep",
    "WideDeepConfig",
]
