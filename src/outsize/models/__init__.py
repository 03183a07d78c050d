"""Models that read an `EmbeddingCollection`, whatever its rows are made of."""

from outsize.models.click import ClickModel, ClickModelConfig
from outsize.models.dlrm import DLRM, DLRMConfig

CLICK_MODELS: dict[str, type[ClickModelConfig]] = {"dlrm": DLRMConfig}

__all__ = ["CLICK_MODELS", "DLRM", "ClickModel", "ClickModelConfig", "DLRMConfig"]
