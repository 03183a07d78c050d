"""Encoding text and Parquet files of any size to fixed-width columns on disk, in bounded memory."""

from outsize.data.encoding.encoded_folder import open_encoded
from outsize.data.encoding.recipe import LabelRule, Recipe, VocabularyConfig

__all__ = ["LabelRule", "Recipe", "VocabularyConfig", "open_encoded"]
