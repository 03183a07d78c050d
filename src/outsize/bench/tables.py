"""Time of a lookup and its backward pass, by table method, batch size and number of ids.

The peer is `nn.Embedding` with sparse gradients, which touches the rows of the batch only, as a
compressed table does.
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
from outsize.data.zipf import Zipf
from outsize.errors import BudgetError
from outsize.spec import TableSpec
from outsize.tables import TABLES, build_table

ABOUT = "milliseconds of lookup and backward of every table method, by batch and by rows"
_DIM, _CAP = 16, 16_384
_PEER = "nn.Embedding, sparse"


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time every method in turns, at several batches and numbers of ids."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    points = [(1_000_000, 1_024), (1_000_000, 8_192), (1_000_000, 65_536), (10_000, 8_192)]
    points += [(100_000, 8_192)]
    rows = []
    for num_ids, batch in [(2_000, 256)] if quick else points:
        say(f"{num_ids:,} ids, batch {batch:,}")
        ids, tables = _ids(num_ids, batch, device), _tables(num_ids, device)
        calls = {name: partial(_step, it, ids) for name, it in tables.items()}
        timings = time_in_turns(calls, rounds=3 if quick else 7, calls=1 if quick else 3)
        methods = {name: asdict(timing) for name, timing in timings.items()}
        rows.append({"ids": num_ids, "batch": batch, "methods": methods})
    return {"dim": _DIM, "cap": _CAP, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    heads = [f"{row['ids']:,} ids, batch {row['batch']:,}" for row in results["rows"]]
    lines = [
        f"Lookup and backward in milliseconds, dim {results['dim']}, at most {results['cap']:,} "
        "parameters per table, Zipf(1.05) ids; medians of rounds taken in turns. In brackets, the "
        "ratio to hashing.\n",
        f"| method | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
    ]
    names = dict.fromkeys(name for row in results["rows"] for name in row["methods"])
    for name in names:
        cells = []
        for row in results["rows"]:
            found, hashed = row["methods"].get(name), row["methods"]["hash"]["median_s"]
            cells.append(
                f"{found['median_s'] * 1e3:.2f} ({found['median_s'] / hashed:.1f}×)"
                if found
                else "does not fit"
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tables(num_ids: int, device: torch.device) -> dict[str, nn.Module]:
    """Every method that fits the cap, and the peer."""
    spec = TableSpec("ad", num_ids, _DIM)
    found: dict[str, nn.Module] = {_PEER: nn.Embedding(num_ids, _DIM, sparse=True).to(device)}
    for method in TABLES:
        if method == "full":
            continue
        try:
            found[method] = build_table(method, spec, max_params=_CAP).to(device)
        except BudgetError:
            continue
    return found


def _ids(num_ids: int, batch: int, device: torch.device) -> Tensor:
    uniform = torch.rand(batch, 1, generator=torch.Generator().manual_seed(0))
    ranks = Zipf([num_ids], 1.05).ranks(uniform).squeeze(1)
    return (ranks * 48_271 % num_ids).to(device)  # scatter the popular ids


def _step(module: nn.Module, ids: Tensor) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    module(ids).sum().backward()
    if ids.is_cuda:
        torch.cuda.synchronize()


BENCHMARK = Benchmark("tables", "outsize bench tables", ABOUT, run, table)
