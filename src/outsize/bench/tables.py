"""Time of a lookup and its backward pass, by table method, batch size and number of ids.

The peer is `nn.Embedding` with sparse gradients, which touches the rows of the batch only, as a
compressed table does. The method `full` has all rows, whatever the cap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outsize.bench.runner import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.bench.workloads import scattered_ids
from outsize.errors import BudgetError
from outsize.spec import TableSpec
from outsize.tables import TABLES, build_table

ABOUT = "milliseconds of lookup and backward of every table method, by batch and by rows"
_DIM, _CAP = 16, 16_384
_PEER = "nn.Embedding, sparse"


def run(quick: bool, say: Callable[[str], None], device: str | None = None) -> dict[str, Any]:
    """Time every method in turns, at several batches and numbers of ids."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    points = [(1_000_000, 1_024), (1_000_000, 8_192), (1_000_000, 65_536), (10_000, 8_192)]
    points += [(100_000, 8_192)]
    rows, tables, num_made = [], dict[str, nn.Module](), 0
    rounds, repeats = (3, 1) if quick else (7, 3)
    for num_ids, batch in [(2_000, 256)] if quick else points:
        say(f"{num_ids:,} ids, batch {batch:,}")
        if num_ids != num_made:
            tables, num_made = _tables(num_ids, device), num_ids
        ids = scattered_ids(num_ids, batch, torch.Generator().manual_seed(0)).to(device)
        steps = {name: partial(_step, it, ids) for name, it in tables.items()}
        lookups = {name: partial(_look_up, it, ids) for name, it in tables.items()}
        timings = time_in_turns(steps, rounds=rounds, calls=repeats)
        alone = time_in_turns(lookups, rounds=rounds, calls=repeats)
        methods = {
            name: {**asdict(timing), "lookup_s": alone[name].median_s}
            for name, timing in timings.items()
        }
        rows.append({"ids": num_ids, "batch": batch, "methods": methods})
    return {"dim": _DIM, "cap": _CAP, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    heads = [f"{row['ids']:,} ids, batch {row['batch']:,}" for row in results["rows"]]
    lines = [
        f"Lookup and backward in milliseconds, dim {results['dim']}, at most {results['cap']:,} "
        "parameters per table, Zipf(1.05) ids; medians of rounds taken in turns. In brackets, the "
        "lookup alone, and the ratio to hashing.\n",
        f"| method | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
    ]
    names = dict.fromkeys(name for row in results["rows"] for name in row["methods"])
    for name in names:
        cells = []
        for row in results["rows"]:
            found, hashed = row["methods"].get(name), row["methods"]["hash"]["median_s"]
            cells.append(
                f"{found['median_s'] * 1e3:.3f} ({found['lookup_s'] * 1e3:.3f}; "
                f"{found['median_s'] / hashed:.1f}×)"
                if found
                else "does not fit"
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tables(num_ids: int, device: str) -> dict[str, nn.Module]:
    """Every method that fits the cap, full tables, and the peer."""
    spec = TableSpec("ad", num_ids, _DIM)
    found: dict[str, nn.Module] = {_PEER: nn.Embedding(num_ids, _DIM, sparse=True).to(device)}
    for method in TABLES:
        cap = None if method == "full" else _CAP
        try:
            found[method] = build_table(method, spec, max_params=cap).to(device)
        except BudgetError:
            continue
    return found


def _step(module: nn.Module, ids: Tensor) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    module(ids).sum().backward()


@torch.no_grad()
def _look_up(module: nn.Module, ids: Tensor) -> None:
    module(ids)


BENCHMARK = Benchmark("tables", "outsize bench tables", ABOUT, run, table, run_on=run)
