"""Any model of sentence-transformers as a retrieval model; the library is imported when used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.collection import EmbeddingCollection, FeatureInput
from outsize.errors import ConfigError, DataError, one_line
from outsize.models.requirements import require_positive
from outsize.models.text.groups import in_groups, trimmed
from outsize.models.text.no_embeddings import NoEmbeddings
from outsize.models.text.text_model import ITEM_TOKENS, QUERY_TOKENS, TextModel, TextModelConfig
from outsize.models.text.tokenizer import Tokenizer, TokenMatrix, padded
from outsize.ranks.collectives import world_size
from outsize.suggestions import few

_UNUSED = ".pooler."  # a head of BERT that no pooling of tokens reads, and DDP would wait for


@dataclass(frozen=True)
class SentenceTransformerConfig(TextModelConfig):
    """A folder of sentence-transformers, trained further; needs the extra `text`.

    All of its weights are trained by `[optimizer]`, for which a rate of about 2e-5 is usual.
    `[embeddings]` is not used.

    Attributes:
        path: The folder; nothing is downloaded.
        query_prompt: A text that is put before each query.
        item_prompt: A text that is put before each item.
        max_tokens: Tokens per text at most; 0 for what the model takes.
        normalize: Whether vectors are normalized to length 1, so that scores are cosines.
    """

    path: str
    query_prompt: str = ""
    item_prompt: str = ""
    max_tokens: int = 0
    normalize: bool = True

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ConfigError("path must name a folder of sentence-transformers, but is empty")
        if self.max_tokens:
            require_positive("max_tokens", self.max_tokens)

    @property
    def tables(self) -> None:  # noqa: D102
        return None

    def build_tokenizer(self, texts: Callable[[], Iterable[str]]) -> SentenceTokenizer:  # noqa: D102
        return SentenceTokenizer(load_sentence_transformer(self.path), self)

    def load_tokenizer(  # noqa: D102
        self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> SentenceTokenizer:
        return SentenceTokenizer(load_sentence_transformer(self.path), self)

    def build(  # noqa: D102
        self,
        embeddings: EmbeddingCollection,
        query_features: Sequence[str],
        item_features: Sequence[str],
        seed: int,
        numbers: Sequence[str] = (),
    ) -> SentenceTransformerModel:
        model = SentenceTransformerModel(load_sentence_transformer(self.path), self.normalize)
        if world_size() > 1:
            model.require_all_used()
        return model


def load_sentence_transformer(path: str) -> Any:
    """Load a folder of sentence-transformers to the CPU; no code and no pickle of it is run."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ConfigError(
            "model.kind = 'sentence-transformers' needs sentence-transformers: pip install "
            "'outsize[text]'"
        ) from error
    folder = Path(path)
    if not (folder / "modules.json").is_file():
        raise ConfigError(
            f"{folder} is not a folder of sentence-transformers: there is no modules.json in it; "
            "from bare weights, assemble_model makes one"
        )
    if any(folder.rglob("*.bin")) and not any(folder.rglob("*.safetensors")):
        raise ConfigError(
            f"{folder} has its weights in a pickle, which is never loaded: save the model again "
            "with a newer version of sentence-transformers, as safetensors"
        )
    try:
        return SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"use_safetensors": True},
        ).float()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{folder} cannot be loaded: {one_line(error, 200)}") from None


class SentenceTokenizer(Tokenizer):
    """The tokenizer of a sentence-transformers model, with prompts before texts.

    Args:
        model: The model.
        config: The prompts, and the most tokens of a text.
    """

    def __init__(self, model: Any, config: SentenceTransformerConfig) -> None:
        self._tokenizer: Any = getattr(model, "tokenizer", None)
        if not callable(self._tokenizer) or not hasattr(self._tokenizer, "pad_token_id"):
            raise ConfigError(
                f"{config.path} has no tokenizer of texts: choose a model whose first module is a "
                "transformer over texts"
            )
        takes = model.max_seq_length or 512
        self.max_tokens = min(config.max_tokens or takes, takes)
        self.num_tokens = len(self._tokenizer)
        self._prompts = (config.item_prompt, config.query_prompt)

    def encode(self, texts: Sequence[str], is_query: bool) -> TokenMatrix:  # noqa: D102
        if not texts:
            return padded([], self.max_tokens)
        prompted = [self._prompts[is_query] + text for text in texts]
        settings = {"add_special_tokens": True, "return_attention_mask": False}
        found = self._tokenizer(prompted, truncation=True, max_length=self.max_tokens, **settings)[
            "input_ids"
        ]
        full = [prompted[i] for i, line in enumerate(found) if len(line) == self.max_tokens]
        whole = self._tokenizer(full, verbose=False, **settings)["input_ids"] if full else []
        num_cut = sum(len(line) > self.max_tokens for line in whole)
        # A tokenizer without special tokens has none for an empty text.
        filler = [self._tokenizer.pad_token_id or 0]
        return TokenMatrix(padded([line or filler for line in found], self.max_tokens).ids, num_cut)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Nothing: the tokenizer is in the folder of the model."""
        return {}, {}


class SentenceTransformerModel(TextModel):
    """Encodes queries and items by one model of sentence-transformers.

    Args:
        model: A `SentenceTransformer`.
        normalize: Whether vectors are normalized to length 1.

    Attributes:
        encoder: The `SentenceTransformer`.
    """

    def __init__(self, model: Any, normalize: bool) -> None:
        super().__init__()
        self.encoder = model
        self.normalize = normalize
        self.embeddings = NoEmbeddings()
        self.dim = int(model.get_embedding_dimension())
        self._pad_id = int(getattr(model.tokenizer, "pad_token_id", 0) or 0)
        for name, weight in model.named_parameters():
            if _UNUSED in name:
                weight.requires_grad_(False)

    def require_all_used(self) -> None:
        """Raise a `ConfigError` if a text leaves weights without a gradient.

        Ranks would wait for these gradients forever. In one process they do no harm.
        """
        encoded = self._encode_batch(torch.zeros(1, 1, dtype=torch.int64))
        weights = {n: w for n, w in self.encoder.named_parameters() if w.requires_grad}
        found = torch.autograd.grad(encoded.sum(), list(weights.values()), allow_unused=True)
        unused = [name for name, grad in zip(weights, found, strict=True) if grad is None]
        if unused:
            raise ConfigError(
                f"no text reaches {len(unused)} weights of the model ({few(unused)}), so ranks "
                "cannot average their gradients: train in one process"
            )

    def encode_queries(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "batch dim"]:
        """The vectors of queries, given their tokens."""
        return self._encode(inputs.get(QUERY_TOKENS))

    def encode_items(self, inputs: Mapping[str, FeatureInput]) -> Float[Tensor, "n dim"]:
        """The vectors of items, given their tokens."""
        return self._encode(inputs.get(ITEM_TOKENS))

    @property
    def write_encoder(self) -> Callable[[Path], None]:
        """Writes the model with its tokenizer as a folder of sentence-transformers."""
        return lambda folder: self.encoder.save_pretrained(str(folder), create_model_card=False)

    def _encode(self, ids: Any) -> Float[Tensor, "n dim"]:
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            raise DataError(f"texts are (n, length) token ids, but got {type(ids).__name__}")
        if not len(ids):
            return torch.zeros(0, self.dim, device=ids.device)
        if torch.is_grad_enabled():
            return self._encode_batch(trimmed(ids))
        # Many at once would need the activations of all of them.
        return in_groups(ids, self._encode_batch)

    def _encode_batch(self, ids: Int64[Tensor, "n length"]) -> Float[Tensor, "n dim"]:
        is_token = ids >= 0
        inputs = {
            "input_ids": ids.masked_fill(~is_token, self._pad_id),
            "attention_mask": is_token.long(),
        }
        encoded: Tensor = self.encoder(inputs)["sentence_embedding"].float()
        return F.normalize(encoded, dim=1) if self.normalize else encoded
