"""The small runs of the campaign, and how two of them are compared."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.het.launches import CLICKS, RETRIEVAL
from benchmarks.torture.trial import require
from outsize.checkpoint import list_checkpoints, load_checkpoint
from outsize.training.run_folder import RunFolder

CACHED = ("embeddings.store=sharded", "embeddings.cache.share=0.3",
          "embeddings.cache.read_staleness=5", "embeddings.cache.write_staleness=3")  # fmt: skip
CLUSTERED = ("embeddings={kind='tables', dim=4, method='cce', max_params=120}",
             "embeddings.recluster={every=5, count=3}")  # fmt: skip
LONGER = ("train.epochs=3",)
SHORTER = ("data.num_train=2_000", "train.batch_size=32")
TABULAR = """
[data]
kind = "tabular"
path = ["clicks.csv"]
label = "label"
standardize = ["age"]
log1p = ["price"]
categorical = ["user", "city"]
multi_valued = ["tags"]
max_bad_rows = 0.0
[data.vocabulary]
hashed = ["tags"]
num_buckets = 20
[model]
bottom = [4]
top = [4]
[embeddings]
dim = 4
[train]
batch_size = 64
steps = 24
validate_every = 8
log_every = 4
early_stop = false
device = "cpu"
[checkpoint]
every = 6
"""
PAIRS = """
[data]
kind = "interactions"
path = ["pairs.csv"]
query = "user"
item = "item"
item_features = ["tags", "price"]
multi_valued = ["tags"]
numeric = ["price"]
[model]
kind = "two-tower"
dim = 8
hidden = [8]
[negatives]
kind = "cache"
num_negatives = 4
refresh = 0.1
[embeddings]
dim = 4
[retrieval]
recall_at = [5]
ndcg_at = [5]
mrr_at = [5]
judge = "loss"
[train]
batch_size = 32
steps = 16
validate_every = 8
log_every = 4
early_stop = false
device = "cpu"
[checkpoint]
every = 6
"""
__all__ = ["CACHED", "CLICKS", "CLUSTERED", "LONGER", "PAIRS", "RETRIEVAL", "SHORTER", "TABULAR"]


def write_clicks(path: Path, num_rows: int, seed: int = 0) -> None:
    """A click log of raw values, as a CSV file."""
    draw = random.Random(seed)
    lines = ["label,age,price,user,city,tags"]
    for _ in range(num_rows):
        city = draw.randrange(25)
        label = int(draw.random() < (0.8 if city % 3 == 0 else 0.2))
        tags = "|".join(f"t{draw.randrange(9)}" for _ in range(draw.randrange(4)))
        age, price = f"{draw.gauss(40, 10):.2f}", f"{draw.expovariate(0.1):.2f}"
        lines.append(f"{label},{age},{price},u{draw.randrange(200)},city {city},{tags}")
    path.write_text("\n".join(lines) + "\n")


def write_pairs(path: Path, num_queries: int = 60, num_items: int = 40, seed: int = 0) -> None:
    """Interactions of users with items, as a CSV file."""
    draw = random.Random(seed)
    lines = ["user,item,tags,price"]
    for query in range(num_queries):
        for item in draw.sample(range(num_items), 8):
            lines.append(f"u{query},i{item},a|b{item % 3},{item % 7}.5")
    path.write_text("\n".join(lines) + "\n")


def write_run(path: Path, text: str, *settings: str) -> tuple[str, ...]:
    """Write a run file; the words of its settings for a command."""
    path.write_text(text)
    return tuple(word for setting in settings for word in ("--set", setting))


def contents(run: Path) -> dict[str, Any]:
    """All that must be equal at the end of two equal runs."""
    newest = list_checkpoints(run / "checkpoint")[-1]
    found: dict[str, Any] = {"checkpoint": newest.name, "state": load_checkpoint(newest)}
    for path in sorted(newest.glob("*.safetensors")):
        found[path.name] = load_file(path)
    found["log"] = [_without_times(line) for line in RunFolder(run).metrics()]
    return found


def require_equal(run: Path, reference: Path) -> None:
    """Fail the trial unless two runs ended with the same weights, rows and log, bit for bit."""
    found = list(itertools.islice(differences(contents(run), contents(reference)), 5))
    require(not found, f"the run differs from an undisturbed one at {', '.join(found)}")


def first_difference(one: Any, other: Any) -> str | None:
    """Where two trees of tensors and plain values differ first; `None` if they do not."""
    return next(differences(one, other), None)


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two trees of tensors and plain values differ, durations aside."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or not _same_bits(one, other):
            yield path
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted(one.keys() ^ other.keys()):
            yield f"{path}/{key}"
        for key in one.keys() & other.keys():
            if not _is_time(key, one[key]):
                yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(mine, theirs, f"{path}/{i}")
    elif type(one) is not type(other) or repr(one) != repr(other):
        yield path


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, theirs = (part.contiguous().reshape(-1).view(torch.uint8) for part in (one, other))
    return torch.equal(mine, theirs)


def _without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not _is_time(key, value)}


def _is_time(key: str, value: Any) -> bool:
    """Whether a value is a duration, or something per second, which no two runs share."""
    return key.endswith(("_s", "seconds")) and not isinstance(value, torch.Tensor)
