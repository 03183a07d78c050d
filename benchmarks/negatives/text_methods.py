"""Ways of finding negatives for a text encoder, and the runs that compare them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode


@dataclass(frozen=True)
class Method:
    """A way of finding negatives.

    Attributes:
        negatives: `[negatives]` of its run file, without β.
        larger: Times the batch; the run is then so many times fewer steps, and sees as many pairs.
    """

    negatives: dict[str, Any] = field(default_factory=dict)
    larger: int = 1


_WHOLE = {"kind": "cache", "num_negatives": 4, "refresh": 0.002}
METHODS = {
    "in-batch": Method({"kind": "in-batch"}),
    "in-batch, 4 times the batch in chunks": Method({"kind": "in-batch"}, larger=4),
    "queue": Method({"kind": "queue", "num_items": 8192}),
    "cache of positives, k = 1, LRU": Method(
        {"kind": "cache", "feed": "positives", "num_negatives": 1, "eviction": "lru",
         "log_q": False, "estimator": "weighted"}
    ),
    "cache": Method(_WHOLE),
    "cache, joined with the batch": Method({**_WHOLE, "in_batch": True}),
}  # fmt: skip
"""The third from last is the setting of the paper's public code; the method before it encodes in
chunks whose activations are made twice, as GradCache does."""


@dataclass(frozen=True)
class Encoder:
    """What is trained.

    Attributes:
        name: In words, for results.
        settings: `[model]` and its rates, as a run file has them.
    """

    name: str
    settings: dict[str, Any]

    @classmethod
    def small(cls) -> Encoder:
        """Words and one layer of self-attention, trained from scratch."""
        model = {"kind": "text", "dim": 64, "layers": 1, "heads": 2, "max_tokens": 48,
                 "max_words": 20_000, "num_buckets": 10_000}  # fmt: skip
        rows = {"kind": "adagrad", "learning_rate": 0.05}
        return cls(
            "a layer of self-attention from scratch (dim 64, 48 tokens)",
            {"model": model, "embeddings": {"dim": 64, "optimizer": rows},
             "optimizer": {"learning_rate": 1e-3}},
        )  # fmt: skip

    @classmethod
    def folder(cls, path: Path, max_tokens: int) -> Encoder:
        """A folder of sentence-transformers, fine-tuned."""
        model = {"kind": "sentence-transformers", "path": str(path), "max_tokens": max_tokens}
        name = f"{path.resolve().name}, fine-tuned ({max_tokens} tokens)"
        return cls(name, {"model": model, "optimizer": {"learning_rate": 2e-5}})

    def at_rate(self, scale: float) -> dict[str, Any]:
        """The settings with their learning rates multiplied."""
        scaled = {name: dict(values) for name, values in self.settings.items()}
        scaled["optimizer"]["learning_rate"] *= scale
        if "embeddings" in scaled:
            rows = dict(scaled["embeddings"]["optimizer"])
            rows["learning_rate"] *= scale
            scaled["embeddings"]["optimizer"] = rows
        return scaled


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        method: A key of `METHODS`.
        batch: Pairs per step; a method may take a multiple.
        rate: Times the learning rates of the encoder.
        beta: The inverse temperature.
        seed: Of the weights and the order of pairs.
        steps: Steps of `batch` pairs.
        is_trial: Whether it only chooses a rate and a β, so that nothing is tested.
    """

    method: str
    batch: int
    rate: float
    beta: float
    seed: int
    steps: int
    is_trial: bool = False

    @property
    def name(self) -> str:
        """A name for its file."""
        words = "".join(letter if letter.isalnum() else " " for letter in self.method).split()
        kind = "trial" if self.is_trial else "final"
        settings = f"{self.batch}-{self.rate:g}-{self.beta:g}-{self.steps}-{self.seed}"
        return f"{kind}-{'-'.join(words)}-{settings}"


def config_of(cell: Cell, data: dict[str, Any], encoder: Encoder, device: str) -> RunConfig:
    """The run of a cell; it is validated four times, and tested at the best of them."""
    method = METHODS[cell.method]
    steps = max(1, cell.steps // method.larger)
    negatives = {**method.negatives, "beta": cell.beta}
    if method.larger > 1:
        negatives["chunk_size"] = cell.batch
    tree = {
        **encoder.at_rate(cell.rate),
        "seed": cell.seed,
        "data": {**data, "seed": cell.seed},
        "negatives": negatives,
        "retrieval": {"judge": "mrr@10", "mrr_at": [10], "recall_at": [10], "ndcg_at": [10]},
        "schedule": {"shape": "linear", "warmup_steps": max(1, steps // 15)},
        "train": {"batch_size": cell.batch * method.larger, "epochs": 100_000, "steps": steps,
                  "validate_every": max(1, steps // 4), "log_every": steps + 1,
                  "early_stop": False, "device": device},
    }  # fmt: skip
    return decode(RunConfig, tree, cell.name)
