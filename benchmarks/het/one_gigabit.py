"""Training over a real 1 Gbit network between two hosts, with and without a cache.

    sudo python benchmarks/one_gigabit.py [--out benchmarks/results] [--quick]

Two network namespaces of this machine are the hosts, joined by a pair of virtual interfaces whose
rate `tc` limits (a token bucket, both directions). Everything is set up here and torn down again,
also after an error. Each host runs as many ranks as it is given; all modes take turns, several
times, and what is compared is the time of a step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.het.staleness import MODES, run_text, steady_step_s
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment
from outsize.training.run_folder import RunFolder

_HOSTS = ("outsize-a", "outsize-b")
_LINKS = ("outsize-va", "outsize-vb")
_ADDRESSES = ("10.91.0.1", "10.91.0.2")
_PORT = 29_517
_SHOWN = ("synchronous", "synchronous, int8", "s = 100", "read 100, write 10, int8")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rate", default="1gbit", help="of the link, as tc reads it")
    parser.add_argument("--ranks", type=int, default=1, help="a host")
    parser.add_argument("--batch", type=int, default=512, help="of a rank")
    parser.add_argument("--dim", type=int, default=128, help="width of a row")
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
                print(f"{mode}: {seconds[mode][-1] * 1e3:.1f} ms a step", file=sys.stderr)
    report(given, seconds, lines)


def train(mode: str, out: Path, given: argparse.Namespace) -> None:
    """Train one mode, a launcher on each host."""
    run = out.parent / f"{out.name}.toml"
    run.write_text(
        run_text(
            MODES[mode],
            num_ranks=2 * given.ranks,
            batch_size=given.batch,
            steps=given.steps,
            skew=1.05,
            dim=given.dim,
            log_every=max(10, given.steps // 20),
        )
    )
    launchers = []
    for node, (host, link) in enumerate(zip(_HOSTS, _LINKS, strict=True)):
        words = [
            "ip", "netns", "exec", host, sys.executable, "-m", "torch.distributed.run",
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
    """Two network namespaces with a limited link between them, as long as the context lasts."""
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
    """Print the table, and keep it."""
    first = statistics.median(seconds[_SHOWN[0]])
    rows = [
        f"Two hosts, {given.ranks} rank(s) each, {given.rate} between them; batch {given.batch} a "
        f"rank, 26 features of 38,462 rows of {given.dim} numbers (Zipf 1.05), cache of 10% of "
        "the rows, "
        f"{given.steps} steps, the first half left out; median of {given.rounds} turns (least to "
        "greatest).\n",
        "| mode | ms a step | speed-up | MB sent a step | hit rate |",
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
        results.append({"mode": mode, "step_s": values, "sent_bytes_a_step": sent / steps})
    command = f"python benchmarks/one_gigabit.py {shlex.join(sys.argv[1:])}".strip()
    facts = "".join(f"- {key}: {value}\n" for key, value in environment().items())
    text = f"# Training over {given.rate}\n\n`{command}`\n\n{facts}\n" + "\n".join(rows) + "\n"
    print(text)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        stem = f"one-gigabit-{given.dim}-cpu"
        found = {"command": command, "environment": environment(), "results": results}
        write_text_atomically(given.out / f"{stem}.json", json.dumps(found, indent=1) + "\n")
        write_text_atomically(given.out / f"{stem}.md", text)


def _ip(*words: str) -> None:
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("this needs iproute2 (the commands ip and tc)") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"ip {' '.join(words)}: {error.stderr.strip()}") from None


if __name__ == "__main__":
    main()
