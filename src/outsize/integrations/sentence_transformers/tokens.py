"""Tokenized texts in a form that a cache can hold: unpadded, of one width, with a key each.

A column of sentence-transformers is a dictionary: `input_ids` and `attention_mask` `(n, width)`,
padded to the longest text of the batch, perhaps `token_type_ids`, and values that hold for the
whole column, such as `prompt_length`, `task` and `modality`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64
from torch import Tensor

from outsize.errors import DataError
from outsize.hashing import mix_bits

_STORED_AS = {"input_ids": torch.int32, "token_type_ids": torch.int8}
_MAX_KEY = (1 << 63) - 1
LENGTH = "length"  # the feature that holds the number of tokens


@dataclass(frozen=True)
class Column:
    """The texts of one column, unpadded: tokens start at place 0.

    Attributes:
        tokens: `input_ids`, and `token_type_ids` if there are any, `(n, width)` by name.
        lengths: Tokens per text.
        shared: What holds for the whole column, such as the length of its prompt.
    """

    tokens: Mapping[str, Tensor]
    lengths: Int64[Tensor, " n"]
    shared: Mapping[str, Any]

    def first(self, num: int) -> Column:
        """The first `num` texts."""
        tokens = {name: values[:num] for name, values in self.tokens.items()}
        return Column(tokens, self.lengths[:num], self.shared)

    def keys(self) -> Int64[Tensor, " n"]:
        """A non-negative 63-bit hash of the tokens of each text, padding not included."""
        ids = self.tokens["input_ids"].long()
        places = torch.arange(ids.shape[1], device=ids.device)
        mixed = mix_bits(mix_bits(ids + 1) + places)
        sums = (mixed * (places < self.lengths.unsqueeze(1))).sum(dim=1)
        return mix_bits(sums + mix_bits(self.lengths)) & _MAX_KEY

    def features(self, width: int) -> dict[str, Tensor]:
        """The features that a cache holds: tokens of a fixed width, and their number."""
        if self.lengths.numel() and int(self.lengths.max()) > width:
            raise DataError(
                f"a text has {int(self.lengths.max())} tokens, but the cache stores {width}: raise "
                "max_tokens, or lower the model's max_seq_length, which cuts texts"
            )
        stored = {
            name: F.pad(values[:, :width], (0, max(0, width - values.shape[1]))).to(
                _STORED_AS[name]
            )
            for name, values in self.tokens.items()
        }
        return stored | {LENGTH: self.lengths.to(torch.int32)}


def feature_shapes(names: list[str], width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and dtypes of the features of one text, for a cache."""
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        name: ((width,), _STORED_AS[name]) for name in names
    }
    return shapes | {LENGTH: ((), torch.int32)}


def as_column(features: Mapping[str, Any]) -> Column:
    """Unpad the texts of a column; refuses inputs that are not one line of tokens per text."""
    if "cu_seq_lens_q" in features or "seq_idx" in features:
        raise DataError(
            "the texts of a batch come as one flattened line, which cannot be cached: set "
            "model[0].unpad_inputs = False"
        )
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not isinstance(mask, Tensor):
        raise DataError(
            "NegativeCacheLoss needs input_ids and attention_mask, a line per text, but got "
            f"{sorted(map(str, features))}: use a transformer over texts"
        )
    tokens: dict[str, Tensor] = {}
    shared: dict[str, Any] = {}
    is_token = mask.bool()
    lengths = is_token.sum(dim=1)
    places = _token_places(is_token, lengths)
    is_inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
    for name, values in features.items():
        if name in _STORED_AS:
            tokens[name] = torch.where(is_inside, values.gather(1, places), 0)
        elif name == "attention_mask":
            continue
        elif isinstance(values, Tensor) and values.dim() >= 2:
            raise DataError(
                f"the feature {name!r} of shape {tuple(values.shape)} cannot be cached: "
                "NegativeCacheLoss holds texts only"
            )
        elif name not in ("sentence_embedding", "token_embeddings", "all_layer_embeddings"):
            shared[name] = _one_value(name, values)
    return Column(tokens, lengths, shared)


def padded(
    features: Mapping[str, Tensor], shared: Mapping[str, Any], side: str, pad_id: int
) -> dict[str, Any]:
    """The inputs of the model: texts padded to the longest of them, on the tokenizer's side."""
    lengths = features[LENGTH].long()
    longest = max(1, int(lengths.max())) if lengths.numel() else 1
    places = torch.arange(longest, device=lengths.device).expand(len(lengths), -1)
    is_token = places < lengths.unsqueeze(1)
    if side == "left":
        is_token = is_token.flip(1)
        places = (places - (longest - lengths).unsqueeze(1)).clamp_min(0)
    inputs: dict[str, Any] = {}
    for name in _STORED_AS:
        if name in features:
            filler = pad_id if name == "input_ids" else 0
            values = features[name].long().gather(1, places)
            inputs[name] = torch.where(is_token, values, filler)
    inputs["attention_mask"] = is_token.long()
    return inputs | dict(shared)


def _token_places(
    is_token: Bool[Tensor, "n width"], lengths: Int64[Tensor, " n"]
) -> Int64[Tensor, "n width"]:
    """Where the i-th token of each text is; the tokens of a text must be adjacent."""
    width = is_token.shape[1]
    first = is_token.int().argmax(dim=1) if width else lengths
    places = torch.arange(width, device=is_token.device)
    expected = (places >= first.unsqueeze(1)) & (places < (first + lengths).unsqueeze(1))
    if not torch.equal(expected, is_token):
        raise DataError("the attention mask of a text has gaps: its tokens cannot be cached")
    return (first.unsqueeze(1) + places).clamp_max(max(0, width - 1))


def _one_value(name: str, value: Any) -> Any:
    """The value of a whole column; a tensor must have the same value for every text."""
    if not isinstance(value, Tensor):
        return value
    distinct = torch.unique(value).tolist()
    if len(distinct) != 1:
        raise DataError(f"the texts of a column differ in {name!r}: give the column one value")
    return distinct[0]
