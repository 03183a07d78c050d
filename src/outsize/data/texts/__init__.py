"""Texts for retrieval: queries, items and pairs of both, from files and installed packages."""

from outsize.data.texts.beir import BeirConfig
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.ms_marco import MsMarcoConfig
from outsize.data.texts.pair_files import TextPairsConfig
from outsize.data.texts.pydocs import PydocsConfig
from outsize.data.texts.text_pairs import TextPairs, Texts
from outsize.data.texts.token_data import TokenData

__all__ = [
    "BeirConfig",
    "MsMarcoConfig",
    "PydocsConfig",
    "TextDataConfig",
    "TextPairs",
    "TextPairsConfig",
    "Texts",
    "TokenData",
]
