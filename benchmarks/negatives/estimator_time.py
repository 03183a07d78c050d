"""What every gradient estimator costs in a step whose items are look-ups.

There, nothing hides the product of queries × drawn items that shared draws need: it grows with the
square of the batch. Beside a text encoder it is small.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.negatives import ESTIMATORS, Comparison, NegativeCache, NegativeCacheLoss

ABOUT = "the time of every gradient estimator of the negative cache, in a step with ids as items"
_DIM, _DRAWS = 64, 16


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time all estimators in turns."""
    num_items, batches, turns = (512, (16,), 2) if quick else (24_915, (256, 2048), 7)
    torch.manual_seed(0)
    items = nn.Embedding(num_items, _DIM)
    losses = {name: make_loss(items, name) for name in ESTIMATORS}
    rows = []
    for batch in batches:
        say(f"a batch of {batch}")
        times: dict[str, list[float]] = {name: [] for name in losses}
        for turn in range(turns + 1):
            for name, loss in losses.items():
                elapsed_s = timed_step(loss, num_items, batch)
                if turn:  # the first is a warm-up
                    times[name].append(elapsed_s)
        rows += [
            {"batch": batch, "estimator": name, "ms": 1e3 * statistics.median(found)}
            for name, found in times.items()
        ]
    return {"rows": rows, "items": num_items, "turns": turns}


def make_loss(items: nn.Embedding, estimator: str) -> NegativeCacheLoss:
    """A loss against a cache of all items, which are look-ups."""

    def encode(features: Mapping[str, Tensor]) -> Tensor:
        return F.normalize(items(features["id"]), dim=1)

    num_items = items.num_embeddings
    cache = NegativeCache(num_items, _DIM, {"id": ((), torch.int64)})
    keys = torch.arange(num_items)
    with torch.no_grad():
        cache.push({"id": keys}, encode({"id": keys}), keys)
    return NegativeCacheLoss(cache, encode, 10.0, _DRAWS, Comparison(estimator))


def timed_step(loss: NegativeCacheLoss, num_items: int, batch: int) -> float:
    """Processor seconds of one step: forward, backward and commit."""
    queries = F.normalize(torch.randn(batch, _DIM), dim=1).requires_grad_()
    keys = torch.randint(num_items, (batch,))
    started = time.process_time()
    report = loss(queries, {"id": keys}, keys)
    report.loss.backward()
    loss.commit(report)
    return time.process_time() - started


def table(results: dict[str, Any]) -> str:
    """The results as Markdown: one line per batch, one column per estimator."""
    lines = [
        f"Processor time of a step in ms (median of {results['turns']}, in turns): draw, forward, "
        f"backward and commit, {_DRAWS} draws per query, {results['items']:,} ids as items, width "
        f"{_DIM}.\n",
        "| batch | " + " | ".join(ESTIMATORS) + " |",
        "|--:|" + "--:|" * len(ESTIMATORS),
    ]
    cells = {(row["batch"], row["estimator"]): row["ms"] for row in results["rows"]}
    for batch in dict.fromkeys(row["batch"] for row in results["rows"]):
        found = " | ".join(f"{cells[batch, name]:,.0f}" for name in ESTIMATORS)
        lines.append(f"| {batch:,} | {found} |")
    return "\n".join(lines) + "\n"


BENCHMARK = Benchmark(
    "estimator-time", "python -m benchmarks.negatives.estimator_time", ABOUT, run, table
)

if __name__ == "__main__":
    run_command(BENCHMARK)
