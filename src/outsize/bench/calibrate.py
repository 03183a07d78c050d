"""`outsize bench calibrate`: the speed of this machine, for the times that `outsize plan` predicts.

It measures one rank with as many torch threads as this process has (`OMP_NUM_THREADS`): a dense
step, a step of rows, what wires take to encode and decode, and rounds between two and four
processes of this machine. On a busy machine, one thread is measured best: its clock is the
processor's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from outsize.errors import OutsizeError
from outsize.plan.calibration import (
    Calibration,
    ExchangeSpeed,
    default_calibration,
    save_calibration,
)
from outsize.plan.reference import (
    dense_reference,
    median_s,
    multiply_adds_per_s,
    rows_per_s,
    rows_reference,
)
from outsize.reporting.environment import environment
from outsize.stores.wire import WIRES

ABOUT = "the speed of this machine, for the times that `outsize plan` predicts"
_TURNS, _ROUNDS = 5, 11
_WIRE_ROWS, _WIRE_DIM = 20_000, 16
_GROUPS = (2, 4)
_TIMEOUT_S = 300


def calibrate(
    out: Path | None, say: Callable[[str], None], *, quick: bool = False
) -> tuple[Calibration, Path]:
    """Measure this machine and write a calibration.

    Args:
        out: The file, or a folder for `calibration.json`; by default the file of this user.
        say: Shows progress.
        quick: Take few rounds, which only shows that it works.

    Returns:
        The calibration and its file.
    """
    path = default_calibration() if out is None else out
    path = path / "calibration.json" if path.is_dir() or path.suffix != ".json" else path
    turns, rounds = (1, 3) if quick else (_TURNS, _ROUNDS)
    say(f"a dense step, a step of rows and wires, in {turns} turns")
    references = {"dense": dense_reference(), "rows": rows_reference(), **_wire_steps()}
    turns_of: dict[str, list[float]] = {name: [] for name in references}
    for _ in range(turns):
        for name, step in references.items():
            turns_of[name].append(median_s(step, rounds))
    best = {name: sorted(found)[len(found) // 2] for name, found in turns_of.items()}
    say(f"rounds between {_GROUPS[0]} processes, then {_GROUPS[1]}")
    two, more = (_exchange_between(number) for number in _GROUPS)
    further = max(0.0, more["processor_s"] - two["processor_s"]) / (_GROUPS[1] - _GROUPS[0])
    found = Calibration(
        threads=torch.get_num_threads(),
        dense_s=best["dense"],
        rows_s=best["rows"],
        exchange=ExchangeSpeed(two["round_s"], further, two["byte_s"]),
        wires={name: best[name] / (_WIRE_ROWS * _WIRE_DIM) for name in WIRES},
        environment=environment(),
    )
    save_calibration(found, path)
    return found, path


def calibration_lines(found: Calibration, path: Path) -> list[str]:
    """The calibration for people."""
    exchange = found.exchange
    sent = f"{1 / exchange.byte_s / 1e6:,.0f} MB" if exchange.byte_s else "any number of bytes"
    return [
        f"dense    {multiply_adds_per_s(found.dense_s) / 1e9:,.1f} billion multiplications and "
        f"additions per second, {found.threads} torch thread{'s' * (found.threads > 1)}",
        f"rows     {rows_per_s(found.rows_s) / 1e6:,.2f} million rows read and updated per second",
        *(
            f"wire     {name}: {1 / seconds / 1e6:,.0f} million numbers encoded and decoded per "
            "second"
            for name, seconds in found.wires.items()
        ),
        f"rounds   {exchange.round_s * 1e6:,.0f} µs between two processes of this machine, "
        f"{exchange.peer_s * 1e6:,.0f} µs more per further one, {sent} per second",
        f"→  {path}; outsize plan RUN.toml --ranks N uses it",
    ]


def as_plain(found: Calibration, path: Path) -> dict[str, Any]:
    """The calibration as plain values, for JSON."""
    return {"out": str(path), **asdict(found)}


def _wire_steps() -> dict[str, Callable[[], object]]:
    """For each wire, a call that encodes and decodes rows."""
    rows = torch.randn(_WIRE_ROWS, _WIRE_DIM, generator=torch.Generator().manual_seed(0))
    return {
        name: lambda wire=wire: wire.decode(wire.encode(rows), _WIRE_DIM)  # type: ignore[misc]
        for name, wire in WIRES.items()
    }


def _exchange_between(num_ranks: int) -> Mapping[str, float]:
    """What the first of several processes measures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exchange.json"
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={num_ranks}", "-m", "outsize.bench.exchange_rank", str(path),
        ]  # fmt: skip
        done = subprocess.run(
            words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
            check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode or not path.exists():
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise OutsizeError(
                f"processes of this machine could not exchange messages by torchrun: {lines[-1]}"
            )
        found: dict[str, float] = json.loads(path.read_text())
        return found
