"""Time and memory of reclustering a CCE table, as it grows to ten million ids.

Each size runs in a process of its own, so that its peak memory is its own. The codes of the table
have structure, so that k-means has clusters to find.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.spec import TableSpec
from outsize.tables import CCETable

_REPOSITORY = Path(__file__).parents[2]
ABOUT = "seconds and memory of reclustering a CCE table of up to 10 M ids"
_DIM, _COLUMNS, _CLUSTERS = 16, 4, 2048
_SIZES = (100_000, 1_000_000, 10_000_000)
_CUDA_SIZES = (1_000_000, 10_000_000)
_QUICK_SIZES = (5_000, 20_000)
_WARM_UP_IDS = 200_000


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Recluster tables of every size, with codes per column (the paper) and with shared ones."""
    clusters = 32 if quick else _CLUSTERS
    rows = []
    sizes = _CUDA_SIZES if torch.cuda.is_available() else _SIZES
    for num_ids in _QUICK_SIZES if quick else sizes:
        for shared in (False, True):
            say(f"{num_ids:,} ids, {'shared codes' if shared else 'codes of each column'}")
            rows.append(_alone(num_ids, clusters, shared))
    return {"dim": _DIM, "columns": _COLUMNS, "rows": rows}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"dim {results['dim']}, {results['columns']} columns, ids weighted by Zipf counts, 50 "
        "iterations of k-means on at most 256 points per cluster, then pointers for every id. The "
        "extra memory is the peak above the table itself, on the host and on the GPU.\n",
        "| ids | codes | seconds | extra memory | table | full table | error / variance |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for row in results["rows"]:
        extra = [f"{row['extra_bytes'] / 1e6:,.0f} MB"]
        if "extra_cuda_bytes" in row:
            extra.append(f"{row['extra_cuda_bytes'] / 1e6:,.0f} MB GPU")
        kind = "shared by all columns" if row["shared"] else "of each column"
        lines.append(
            f"| {row['ids']:,} | {row['codes']:,} {kind} | {row['seconds']:.1f} | "
            f"{' + '.join(extra)} | {row['table_bytes'] / 1e6:,.0f} MB | "
            f"{row['full_bytes'] / 1e6:,.0f} MB | {row['error']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def measure(num_ids: int, num_clusters: int, shared: bool) -> dict[str, Any]:
    """Recluster one table; its time, memory and error."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    it = _table(num_ids, num_clusters, shared).to(device)
    counts = (num_ids / torch.arange(1, num_ids + 1)).long() + 1
    counts = counts[torch.randperm(num_ids, generator=torch.Generator().manual_seed(1))]
    if device.type == "cuda":
        # The first reclustering compiles kernels, which is not to be measured.
        _table(min(num_ids, _WARM_UP_IDS), num_clusters, shared).to(device).recluster()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        cuda_before = torch.cuda.memory_allocated()
    before = _forget_peak()
    started = time.perf_counter()
    report = it.recluster(counts=counts)
    seconds = time.perf_counter() - started
    peak = _memory("VmHWM")
    result = {
        "ids": num_ids,
        "codes": it.num_codes,
        "shared": shared,
        "device": device.type,
        "seconds": seconds,
        "extra_bytes": peak - before,
        "table_bytes": it.memory_use().total_bytes,
        "full_bytes": num_ids * _DIM * 4,
        "error": report.mse / report.variance,
        "num_empty": report.num_empty,
    }
    if device.type == "cuda":
        result["extra_cuda_bytes"] = torch.cuda.max_memory_allocated() - cuda_before
    return result


def _table(num_ids: int, num_clusters: int, shared: bool) -> CCETable:
    spec = TableSpec("ad", num_ids, _DIM)
    table = CCETable(spec, num_buckets=2 * num_clusters, columns=_COLUMNS, shared=shared)
    with torch.no_grad():
        table.weight.copy_(
            torch.randn(table.weight.shape, generator=torch.Generator().manual_seed(0))
        )
        table.weight[table.num_main :] *= 0.2  # ids with the same main code differ little
    return table


def _forget_peak() -> int:
    """Reset the peak memory of this process; its current memory in bytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """A field of `/proc/self/status`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _alone(num_ids: int, num_clusters: int, shared: bool) -> dict[str, Any]:
    code = (
        "import json; from benchmarks.speed.recluster import measure; "
        f"print(json.dumps(measure({num_ids}, {num_clusters}, {shared})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_REPOSITORY, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"reclustering failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


BENCHMARK = Benchmark("recluster", "python -m benchmarks.speed.recluster", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
