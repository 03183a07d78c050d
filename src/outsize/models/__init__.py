"""Models that read an `EmbeddingCollection`, whatever its rows are made of."""

from outsize.models.click import ClickModel, ClickModelConfig
from outsize.models.dcn import DCN, DCNConfig
from outsize.models.dcnv2 import DCNv2, DCNv2Config
from outsize.models.deepfm import DeepFM, DeepFMConfig
from outsize.models.dlrm import DLRM, DLRMConfig
from outsize.models.gmf import GMF, GMFConfig
from outsize.models.logistic import Logistic, LogisticConfig
from outsize.models.wide_deep import WideDeep, WideDeepConfig

CLICK_MODELS: dict[str, type[ClickModelConfig]] = {
    "logistic": LogisticConfig,
    "dlrm": DLRMConfig,
    "wide-deep": WideDeepConfig,
    "deepfm": DeepFMConfig,
    "dcn": DCNConfig,
    "dcnv2": DCNv2Config,
    "gmf": GMFConfig,
}

__all__ = [
    "CLICK_MODELS",
    "DCN",
    "DLRM",
    "GMF",
    "ClickModel",
    "ClickModelConfig",
    "DCNConfig",
    "DCNv2",
    "DCNv2Config",
    "DLRMConfig",
    "DeepFM",
    "DeepFMConfig",
    "GMFConfig",
    "Logistic",
    "LogisticConfig",
    "WideDeep",
    "WideDeepConfig",
]
