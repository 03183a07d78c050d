"""Training over a real 1 Gbit network between two hosts, with and without a cache.

    sudo python -m benchmarks.het.one_gigabit [--out benchmarks/results] [--quick]

The hosts are two network namespaces of this machine, joined by a pair of virtual interfaces whose
rate `tc` limits (a token bucket, in both directions). The script sets them up and removes them
again, after an error too. Each host runs `--ranks` ranks. All modes take turns, several times, and
the time per step is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.het.staleness_runs import MODES, steady_step_s, synthetic_run
from benchmarks.runner import typed_command
from outsize.bench.runner import results_page, write_results
from outsize.reporting.environment import environment
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

_HOSTS = ("outsize-a", "outsize-b")
_LINKS = ("outsize-va", "outsize-vb")
_ADDRESSES = ("10.91.0.1", "10.91.0.2")
_PORT = 29_517
_SHOWN = (
    "synchronous", "synchronous, bfloat16", "synchronous, int8",
    "s = 10, int8", "read 100, write 10", "read 100, write 10, int8",
)  # fmt: skip


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rate", default="1gbit", help="rate of the link, as tc writes it")
    parser.add_argument("--ranks", type=int, default=1, help="ranks per host")
    parser.add_argument("--batch", type=int, default=512, help="batch size per rank")
    parser.add_argument("--dim", type=int, default=128, help="numbers per row")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("network namespaces need root: run with sudo")
    if given.quick:
        given.steps, given.rounds = 30, 1
    with two_hosts(given.rate), tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, list[float]] = {mode: [] for mode in _SHOWN}
        lines: dict[str, dict[str, Any]] = {}
        for turn in range(given.rounds):
            for mode in _SHOWN:
                out = Path(folder) / f"{_SHOWN.index(mode)}-{turn}"
                train(mode, out, given)
                metrics = RunFolder(out).metrics()
                seconds[mode].append(steady_step_s(metrics, given.batch * 2 * given.ranks))
                lines[mode] = [line for line in metrics if line["split"] == "train"][-1]
                print(f"{mode}: {seconds[mode][-1] * 1e3:.1f} ms per step", file=sys.stderr)
    report(given, seconds, lines)


def train(mode: str, out: Path, given: argparse.Namespace, *, pinned: bool = False) -> None:
    """Train one mode, with a launcher on each host.

    Args:
        mode: A key of `MODES`.
        out: The run folder.
        given: The options of this command.
        pinned: Whether each host may use one core only, with all its threads.
    """
    run = out.parent / f"{out.name}.toml"
    config = synthetic_run(
        MODES[mode],
        num_ranks=2 * given.ranks,
        batch_size=given.batch,
        steps=given.steps,
        skew=1.05,
        dim=given.dim,
        log_every=max(10, given.steps // 20),
    )
    run.write_text(to_toml(encode(config)))
    launchers = []
    for node, (host, link) in enumerate(zip(_HOSTS, _LINKS, strict=True)):
        cores = ["taskset", "-c", str(node)] if pinned else []
        words = [
            "ip", "netns", "exec", host, *cores, sys.executable, "-m", "torch.distributed.run",
            "--nnodes=2", f"--node-rank={node}", f"--nproc-per-node={given.ranks}",
            f"--master-addr={_ADDRESSES[0]}", f"--master-port={_PORT}",
            "-m", "outsize", "train", str(run), "--out", str(out), "--json",
        ]  # fmt: skip
        settings = {**os.environ, "GLOO_SOCKET_IFNAME": link, "OMP_NUM_THREADS": "1"}
        launchers.append(
            subprocess.Popen(
                words, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        )
    errors = [launcher.communicate(timeout=1800)[1] for launcher in launchers]
    for launcher, text in zip(launchers, errors, strict=True):
        if launcher.returncode:
            raise SystemExit(f"{mode} failed:\n{text[-3000:]}")


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[None]:
    """Two network namespaces with a limited link between them, removed when the context ends."""
    try:
        for host in _HOSTS:
            _ip("netns", "add", host)
        _ip("link", "add", _LINKS[0], "type", "veth", "peer", "name", _LINKS[1])
        for host, link, address in zip(_HOSTS, _LINKS, _ADDRESSES, strict=True):
            _ip("link", "set", link, "netns", host)
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", link, "up")
            limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            _ip("netns", "exec", host, "tc", "qdisc", "add", "dev", link, "root", *limit)
        yield
    finally:
        for host in _HOSTS:  # its end of the link goes with it
            subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def report(
    given: argparse.Namespace, seconds: dict[str, list[float]], lines: dict[str, dict[str, Any]]
) -> None:
    """Print the table, and write it if asked to."""
    first = statistics.median(seconds[_SHOWN[0]])
    rows = [
        f"Two hosts, {given.ranks} rank(s) each, {given.rate} between them; batch {given.batch} "
        f"per rank, 26 features of 38,462 rows of {given.dim} numbers (Zipf 1.05), cache of 10% "
        "of the rows, "
        f"{given.steps} steps, the first half left out; median of {given.rounds} turns (range).\n",
        "| mode | ms per step | speed-up | MB sent per step | hit rate |",
        "|---|--:|--:|--:|--:|",
    ]
    results = []
    for mode, values in seconds.items():
        middle, line = statistics.median(values), lines[mode]
        sent = sum(value for key, value in line.items() if key.startswith("sent_"))
        steps = max(10, given.steps // 20)
        hits = line.get("hit_rate")
        rows.append(
            f"| {mode} | {middle * 1e3:.1f} ({min(values) * 1e3:.1f} to {max(values) * 1e3:.1f}) "
            f"| {first / middle:.2f} | {sent / steps / 1e6:.2f} | {hits or 0:.3f} |"
        )
        results.append({"mode": mode, "step_s": values, "sent_bytes_per_step": sent / steps})
    command = typed_command("benchmarks.het.one_gigabit")
    found = {"command": command, "environment": environment(), "results": results}
    page = results_page(f"Training over {given.rate}", found, "\n".join(rows) + "\n")
    print(page)
    if given.out is not None:
        write_results(given.out / f"one-gigabit-{given.dim}-cpu", found, page)


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("this needs iproute2 (the commands ip and tc)") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"ip {' '.join(words)}: {error.stderr.strip()}") from None


if __name__ == "__main__":
    main()
