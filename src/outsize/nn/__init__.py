"""Drop-in modules for torch models: `Embedding` and `EmbeddingBag` over compressed tables.

`compress_` replaces the embeddings of an existing model by them.
"""

from outsize.nn.compress import compress_
from outsize.nn.embedding import Embedding
from outsize.nn.embedding_bag import EmbeddingBag
from outsize.nn.report import CompressedModule, CompressionReport

__all__ = ["CompressedModule", "CompressionReport", "Embedding", "EmbeddingBag", "compress_"]
