"""Pairs of texts as the tokens of one encoder, in a small file that needs no tokenizer to be read.

    python -m benchmarks.negatives.token_file DATA MODEL OUT --query synopsis --item description

A grid of many runs reads the same texts: tokenizing them once is enough, and a machine that trains
needs neither the texts nor the libraries that read them. Token ids must be below 65,536.
"""

from __future__ import annotations

import argparse
import io
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from benchmarks.negatives.text_grid import taken
from outsize.data.click_data import SPLITS
from outsize.data.retrieval_data import Pairs, RetrievalData
from outsize.data.texts.token_data import TokenRows
from outsize.files import whole_file
from outsize.models.text import ITEM_TOKENS, QUERY_TOKENS
from outsize.training.build_texts import build_text_data
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

_SIDES = {"queries": QUERY_TOKENS, "items": ITEM_TOKENS}


@dataclass(frozen=True)
class Tokens:
    """Queries and items as tokens, and the pairs of both.

    Attributes:
        queries: The tokens of each query, padded with −1.
        items: The tokens of each item, likewise.
        pairs: For each split, the row of the query and of the item of each pair.
        num_tokens: Size of the vocabulary.
    """

    queries: Int32[Tensor, "queries _"]
    items: Int32[Tensor, "items _"]
    pairs: dict[str, Pairs]
    num_tokens: int

    def data(self, seed: int) -> RetrievalData:
        """The pairs as a run trains on them, shuffled by a seed."""
        sides = {"queries": self.queries, "items": self.items}
        queries, items = (
            TokenRows(len(sides[side]), {name: sides[side]}, {name: self.num_tokens})
            for side, name in _SIDES.items()
        )
        return RetrievalData(queries, items, self.pairs, "sum", True, seed, evaluate_cold=True)  # type: ignore[arg-type]

    def write(self, path: Path) -> None:
        """Write a file that `read` reads."""
        parts: dict[str, Any] = {"num_tokens": np.array(self.num_tokens)}
        for side, ids in (("queries", self.queries), ("items", self.items)):
            is_token = ids >= 0
            parts[f"{side}.ids"] = ids[is_token].numpy().astype(np.uint16)
            parts[f"{side}.lengths"] = is_token.sum(dim=1).numpy().astype(np.uint16)
        for split, pairs in self.pairs.items():
            for side, rows in zip(_SIDES, pairs, strict=True):
                parts[f"{split}.{side}"] = rows.numpy().astype(np.int32)
        content = io.BytesIO()
        np.savez(content, **parts)
        with whole_file(path) as file:
            file.write(lzma.compress(content.getvalue(), preset=6))

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """The tokens of a file."""
        parts = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        sides = []
        for side in _SIDES:
            lengths = parts[f"{side}.lengths"].astype(np.int64)
            ids = np.full((len(lengths), int(lengths.max())), -1, dtype=np.int32)
            ids[np.arange(ids.shape[1]) < lengths[:, None]] = parts[f"{side}.ids"]
            sides.append(torch.from_numpy(ids))
        pairs = {
            split: tuple(
                torch.from_numpy(parts[f"{split}.{side}"].astype(np.int64)) for side in _SIDES
            )
            for split in SPLITS
        }
        return cls(sides[0], sides[1], pairs, int(parts["num_tokens"]))  # type: ignore[arg-type]


def tokenize(path: Path, query: str, item: str, model: Path, max_tokens: int) -> Tokens:
    """The tokens of a Parquet file of pairs, with a column split (train, dev, test)."""
    split = {"kind": "column", "column": "split", "validation": ["dev"]}
    tree = {
        "data": {"kind": "text-pairs", "path": [str(path)], "query": query, "item": item,
                 "split": split},
        "model": {"kind": "sentence-transformers", "path": str(model), "max_tokens": max_tokens},
        "optimizer": {"learning_rate": 1e-5},
        "negatives": {"kind": "in-batch"},
    }  # fmt: skip
    data = build_text_data(decode(RunConfig, tree, "tokens"))
    queries, items = data.queries.features[QUERY_TOKENS], data.items.features[ITEM_TOKENS]
    pairs = {split: data.texts.pairs[split] for split in SPLITS}
    return Tokens(queries, items, pairs, data.vocabularies[QUERY_TOKENS])  # type: ignore[arg-type]


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="write pairs of texts as tokens")
    parser.add_argument("data", type=Path, help="a Parquet file of pairs, with a column split")
    parser.add_argument("model", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--query", default="synopsis", help="the column of queries")
    parser.add_argument("--item", default="description", help="the column of items")
    parser.add_argument("--items", type=int, help="take so many pairs, spread over the file")
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args(words)
    path = taken(given.data, given.items, given.out.parent) if given.items else given.data
    tokens = tokenize(path, given.query, given.item, given.model, given.max_tokens)
    tokens.write(given.out)


if __name__ == "__main__":
    main()
