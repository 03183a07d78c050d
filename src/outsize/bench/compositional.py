"""Look-up and backward of compositional tables beside plain embeddings.

The peers are `nn.Embedding` with sparse and with dense gradients. The optimizer is not measured: a
compositional table has few parameters, and a plain embedding as many as it has ids. On a GPU other
sizes matter, see `compositional_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from outsize.bench.compositional_cuda import DENSE, SPARSE, cuda_table, run_on_cuda
from outsize.bench.runner import Benchmark
from outsize.bench.timing import cell, time_in_turns
from outsize.bench.workloads import scattered_ids
from outsize.kernels.threads import torch_threads
from outsize.spec import TableSpec
from outsize.tables import build_table

ABOUT = "milliseconds of look-up and backward of CE, CCE and ROBE beside nn.Embedding"
_TABLES: dict[str, dict[str, Any]] = {
    "cce": {},
    "ce-concat": {},
    "ce-hybrid": {},
    "robe": {},
    "hash": {},
    "cce, packed pointers": {"method": "cce", "pointers": "packed"},
}


def run(quick: bool, say: Callable[[str], None], device: str | None = None) -> dict[str, Any]:
    """Time every method in turns, at several batches, sizes and numbers of threads."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda":
        return run_on_cuda(quick, say)
    most = torch.get_num_threads()
    points = [(1_000_000, 65_536, 16_384, most), (1_000_000, 65_536, 16_384, 1)]
    points += [(1_000_000, 8_192, 16_384, most), (1_000_000, 65_536, 1_000_000, most)]
    points += [(10_000_000, 65_536, 16_384, most)]
    rows = []
    with torch_threads():
        for num_ids, batch, cap, threads in [(2_000, 256, 1_600, 1)] if quick else points:
            say(f"{num_ids:,} ids, batch {batch:,}, {cap:,} parameters, {threads} threads")
            torch.set_num_threads(threads)
            rows.append(_measure(num_ids, batch, cap, threads, 3 if quick else 21))
    return {"dim": 16, "columns": 4, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    if results.get("device") == "cuda":
        return cuda_table(results)
    heads = [
        f"{row['ids']:,} ids, batch {row['batch']:,}, {row['cap']:,} parameters, "
        f"{row['threads']} threads"
        for row in results["rows"]
    ]
    lines = [
        f"Look-up and backward in milliseconds, dim {results['dim']}, {results['columns']} columns "
        "(median of rounds taken in turns; p10 to p90 in brackets).\n",
        f"| method | {' | '.join(heads)} |",
        "|---|" + "--:|" * len(heads),
    ]
    for name in results["rows"][0]["methods"]:
        cells = [cell(row["methods"][name]) for row in results["rows"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _measure(num_ids: int, batch: int, cap: int, threads: int, rounds: int) -> dict[str, Any]:
    spec = TableSpec("ad", num_ids, 16)
    modules: dict[str, nn.Module] = {
        SPARSE: nn.Embedding(num_ids, 16, sparse=True),
        DENSE: nn.Embedding(num_ids, 16),
    }
    for name, options in _TABLES.items():
        modules[name] = build_table(**{"method": name, **options}, spec=spec, max_params=cap)
    draw = torch.Generator().manual_seed(0)
    ids, gradient = scattered_ids(num_ids, batch, draw), torch.randn(batch, 16, generator=draw)
    calls = {name: partial(_step, module, ids, gradient) for name, module in modules.items()}
    timings = time_in_turns(calls, rounds=rounds, calls=1)
    cce = timings["cce"].median_s
    return {
        "ids": num_ids,
        "batch": batch,
        "cap": cap,
        "threads": threads,
        "cce_vs_sparse": cce / timings[SPARSE].median_s,
        "cce_vs_dense": cce / timings[DENSE].median_s,
        "methods": {name: timing.in_ms() for name, timing in timings.items()},
    }


def _step(module: nn.Module, ids: Tensor, gradient: Tensor) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    module(ids).backward(gradient)


BENCHMARK = Benchmark("compositional", "outsize bench compositional", ABOUT, run, table, run_on=run)
