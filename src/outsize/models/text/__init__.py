"""Models that encode texts, with their tokenizers."""

from outsize.models.text.no_embeddings import NoEmbeddings
from outsize.models.text.sentence_transformer import (
    SentenceTransformerConfig,
    SentenceTransformerModel,
)
from outsize.models.text.text_encoder import TextConfig, TextEncoder
from outsize.models.text.text_model import ITEM_TOKENS, QUERY_TOKENS, TextModel, TextModelConfig
from outsize.models.text.tokenizer import Tokenizer, TokenMatrix, WordTokenizer, encode_all

__all__ = [
    "ITEM_TOKENS",
    "QUERY_TOKENS",
    "NoEmbeddings",
    "SentenceTransformerConfig",
    "SentenceTransformerModel",
    "TextConfig",
    "TextEncoder",
    "TextModel",
    "TextModelConfig",
    "TokenMatrix",
    "Tokenizer",
    "WordTokenizer",
    "encode_all",
]
