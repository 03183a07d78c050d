"""Messages that all ranks send each other at once, in pieces and by gloo's `all_to_all`.

    sudo python -m benchmarks.speed.swaps --out benchmarks/results

Ranks are processes of this machine, then also hosts of their own with 1 Gbit between them
(`benchmarks.het.one_gigabit`), for which it has to be root. Both ways are timed in the same ranks,
without a barrier between calls, as in training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.het.one_gigabit import two_hosts
from benchmarks.runner import run_command
from outsize.bench import Benchmark
from outsize.bench.runner import Say
from outsize.bench.timing import Timing, cell, summarize
from outsize.ranks.collectives import process_group
from outsize.ranks.pieces import swap_in_pieces

_SIZES = (1_000, 100_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
_WAYS = ("all_to_all", "pieces")
_RATE, _HOSTS, _LINKS = "1gbit", ("outsize-a", "outsize-b"), ("outsize-va", "outsize-vb")
_ADDRESS, _PORT = "10.91.0.1", 29_518


def run(quick: bool, say: Say) -> dict[str, Any]:
    """Measure ranks of this machine, and two hosts if this may set them up."""
    points = []
    for num_ranks in (2,) if quick else (2, 4):
        say(f"{num_ranks} ranks of this machine")
        words = ["--standalone", f"--nproc-per-node={num_ranks}"]
        points.append({"ranks": num_ranks, "link": "", "sizes": _measured([(words, {})], quick)})
    if os.geteuid() == 0 and not quick:
        say(f"two hosts, {_RATE}")
        hosts = [
            (
                ["--nnodes=2", f"--node-rank={node}", "--nproc-per-node=1",
                 f"--master-addr={_ADDRESS}", f"--master-port={_PORT}"],
                {"GLOO_SOCKET_IFNAME": link, "HOST": host},
            )
            for node, (host, link) in enumerate(zip(_HOSTS, _LINKS, strict=True))
        ]  # fmt: skip
        with two_hosts(_RATE):
            points.append({"ranks": 2, "link": _RATE, "sizes": _measured(hosts, quick)})
    return {"points": points}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "Milliseconds until each rank has sent a message to each other one and has theirs "
        "(median; p10 to p90 in brackets).\n",
        "| ranks | link | bytes per message | all_to_all | in pieces | ratio |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for point in results["points"]:
        for size, times in point["sizes"].items():
            cells = [cell(Timing(**times[way]).in_ms()) for way in _WAYS]
            ratio = times["pieces"]["median_s"] / times["all_to_all"]["median_s"]
            lines.append(
                f"| {point['ranks']} | {point['link'] or 'in memory'} | {int(size):,} | "
                f"{' | '.join(cells)} | {ratio:.2f} |"
            )
    return "\n".join(lines) + "\n"


def _measured(
    launches: Sequence[tuple[list[str], dict[str, str]]], quick: bool
) -> dict[str, dict[str, Any]]:
    """Start ranks by one launcher per host; returns what the first rank has written."""
    with TemporaryDirectory(prefix="outsize-") as folder:
        file = Path(folder) / "found.json"
        launchers = [
            subprocess.Popen(
                [*(["ip", "netns", "exec", settings["HOST"]] if settings else []),
                 sys.executable, "-m", "torch.distributed.run", *words,
                 "-m", "benchmarks.speed.swaps", "--rank", str(file), str(int(quick))],
                env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
                stderr=subprocess.PIPE, text=True,
            )
            for words, settings in launches
        ]  # fmt: skip
        for launcher in launchers:
            _, errors = launcher.communicate()
            if launcher.returncode:
                raise SystemExit(errors[-3000:])
        found: dict[str, dict[str, Any]] = json.loads(file.read_text())
        return found


def _rank(file: str, quick: str) -> None:
    """One of the ranks."""
    torch.set_num_threads(1)
    found = {}
    with process_group(torch.device("cpu")):
        for size in _SIZES[:2] if int(quick) else _SIZES:
            found[size] = _time_ways(size, 3 if int(quick) else 40)
        if dist.get_rank() == 0:
            Path(file).write_text(json.dumps(found))


def _time_ways(size: int, rounds: int) -> dict[str, Any]:
    """Seconds of a swap, by way."""
    own, num = dist.get_rank(), dist.get_world_size()
    sizes = [0 if rank == own else size for rank in range(num)]
    sent = torch.randint(256, (sum(sizes),), dtype=torch.uint8)
    received = torch.empty_like(sent)

    def all_to_all() -> None:
        dist.all_to_all_single(received, sent, sizes, sizes)

    def pieces() -> None:
        swap_in_pieces(_split(received, sizes, own), _split(sent, sizes, own))

    ways: dict[str, Callable[[], None]] = {"all_to_all": all_to_all, "pieces": pieces}
    found = {}
    for name, way in ways.items():  # runs of each, since in training one follows the other
        seconds = []
        for _ in range(rounds + 5):
            started = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - started)
        found[name] = asdict(summarize(seconds[5:]))
    return found


def _split(content: Tensor, sizes: Sequence[int], own: int) -> dict[int, Tensor]:
    parts = enumerate(content.split(list(sizes)))
    return {rank: part for rank, part in parts if rank != own}


BENCHMARK = Benchmark(
    "swaps",
    "python -m benchmarks.speed.swaps",
    "messages that all ranks send each other at once, in pieces and by gloo's all_to_all",
    run,
    table,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(*sys.argv[2:])
    else:
        run_command(BENCHMARK)
