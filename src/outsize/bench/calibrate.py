"""`outsize bench calibrate`: the speed of this machine, for the times that `outsize plan` predicts.

It measures one rank with as many torch threads as this process has (`OMP_NUM_THREADS`): a dense
step, a step of rows, and what wires take to encode and decode. Then it starts two ranks, four and
so on up to the cores of the machine, of one thread each: the same steps beside each other, and the
rounds of messages between them. On a busy machine, one thread is measured best: its clock is the
processor's. Waiting has no such clock.
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
from outsize.launched import reason_of_failure
from outsize.plan.calibration import (
    NUMBERS,
    Calibration,
    Together,
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
_TWO, _FOUR, _MOST = 2, 4, 32
_BUSY = 1.2  # load per core
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
    load = os.getloadavg()[0]
    turns, rounds = (1, 3) if quick else (_TURNS, _ROUNDS)
    say(f"a dense step, a step of rows and wires, in {turns} turns")
    references = {"dense": dense_reference(), "rows": rows_reference(), **_wire_steps()}
    turns_of: dict[str, list[float]] = {name: [] for name in references}
    for _ in range(turns):
        for name, step in references.items():
            turns_of[name].append(median_s(step, rounds))
    best = {name: sorted(found)[len(found) // 2] for name, found in turns_of.items()}
    cores = len(os.sched_getaffinity(0))
    sizes = sizes_of(cores)
    say(f"{', '.join(map(str, sizes))} ranks at once: steps, and rounds of messages")
    measured = {size: _ranks_at_once(size) for size in sizes}
    found = Calibration(
        threads=torch.get_num_threads(),
        dense_s=best["dense"],
        rows_s=best["rows"],
        peer_s=_per_peer(measured, cores),
        together=tuple(
            Together(size, **{name: each[name] for name in NUMBERS})
            for size, each in measured.items()
            if size <= max(_TWO, cores)
        ),
        wires={name: best[name] / (_WIRE_ROWS * _WIRE_DIM) for name in WIRES},
        environment={**environment(), "load": f"{load / cores:.1f} per core"},
    )
    save_calibration(found, path)
    if load > _BUSY * cores:
        say(
            f"this machine was busy (load {load:.1f} on {cores} cores): ranks waited for each "
            "other longer than they do at rest"
        )
    return found, path


def sizes_of(cores: int) -> list[int]:
    """The numbers of ranks to measure: powers of two up to the cores, at least two of them.

    Of more ranks than cores, only the processor time of a round is used.
    """
    most = min(_MOST, cores)
    powers = {1 << power for power in range(1, most.bit_length())}
    return sorted({_TWO, _FOUR, *powers, max(_TWO, most)})


def calibration_lines(found: Calibration, path: Path) -> list[str]:
    """The calibration for people."""
    two = found.of_ranks(_TWO)
    sent = f"{1 / two.byte_s / 1e6:,.0f} MB" if two.byte_s else "any number of bytes"
    return [
        f"dense    {multiply_adds_per_s(found.dense_s) / 1e9:,.1f} billion multiplications and "
        f"additions per second, {found.threads} torch thread{'s' * (found.threads > 1)}",
        f"rows     {rows_per_s(found.rows_s) / 1e6:,.2f} million rows read and updated per second",
        *(
            f"wire     {name}: {1 / seconds / 1e6:,.0f} million numbers encoded and decoded per "
            "second"
            for name, seconds in found.wires.items()
        ),
        f"rounds   {two.round_s * 1e6:,.0f} µs between two processes of this machine, {sent} per "
        "second",
        *(
            f"{each.num_ranks} ranks  dense × {each.dense:.2f}, rows × {each.rows:.2f}, waiting "
            f"{each.wait:.0%} of that, {each.round_s * 1e6:,.0f} µs per round"
            for each in found.together
        ),
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


def _per_peer(measured: Mapping[int, Mapping[str, float]], cores: int) -> float:
    """Seconds that each further rank adds to a round."""
    few, many = _TWO, max(measured)
    clock = "round_s" if many <= cores else "processor_s"  # without waiting for a core
    return max(0.0, measured[many][clock] - measured[few][clock]) / (many - few)


def _ranks_at_once(num_ranks: int) -> Mapping[str, float]:
    """What so many ranks measure together."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "together.json"
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={num_ranks}", "-m", "outsize.bench.exchange_rank", str(path),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                words, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                check=False, timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise OutsizeError(
                f"{num_ranks} processes of this machine took more than {_TIMEOUT_S} s to exchange "
                "messages: calibrate when it is less busy"
            ) from error
        if done.returncode or not path.exists():
            raise OutsizeError(
                f"{num_ranks} processes of this machine could not exchange messages by torchrun: "
                f"{reason_of_failure(done.stderr)}"
            )
        found: dict[str, float] = json.loads(path.read_text())
        return found
