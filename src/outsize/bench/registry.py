"""Benchmarks by name: those that users run on their own machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.bench import (
    cache,
    calibrate,
    compositional,
    dlrm,
    encode,
    kmeans,
    negative_sampling,
    rows,
    tables,
)
from outsize.bench.runner import Benchmark, measure, say_to_console
from outsize.errors import ConfigError
from outsize.suggestions import closest

BENCHMARKS: dict[str, Benchmark] = {
    "cache": cache.BENCHMARK,
    "compositional": compositional.BENCHMARK,
    "dlrm": dlrm.BENCHMARK,
    "encode": encode.BENCHMARK,
    "kmeans": kmeans.BENCHMARK,
    "negative-sampling": negative_sampling.BENCHMARK,
    "rows": rows.BENCHMARK,
    "tables": tables.BENCHMARK,
}
ALIASES: dict[str, str] = {"sample": "negative-sampling"}
# Benchmarks that are in the repository, not in the package → the command that runs them.
MOVED: dict[str, str] = {
    "kmeans-fits": "python -m benchmarks.speed.kmeans",
    "least-squares": "python -m benchmarks.cce.least_squares",
    "negative-theory": "python -m benchmarks.negatives.theory",
    "neighbors": "python -m benchmarks.speed.neighbors",
    "recluster": "python -m benchmarks.speed.recluster",
    "staleness": "python -m benchmarks.het.staleness",
    "staleness-epochs": "python -m benchmarks.het.staleness_epochs",
    "staleness-theory": "python -m benchmarks.het.staleness_theory",
    "staleness-widths": "python -m benchmarks.het.staleness_widths",
}


def run_benchmark(
    name: str,
    out: Path | None = None,
    *,
    quick: bool = False,
    quiet: bool = False,
    device: str | None = None,
) -> dict[str, Any]:
    """Run one benchmark by name; show its table, and write table and numbers to `out`.

    Args:
        name: A key of `BENCHMARKS` or `ALIASES`, "calibrate", or "list" to show them.
        out: Folder for `<name>-cpu.md` and `.json` (`-gpu` on a machine with a GPU); of
            "calibrate", its file.
        quick: Use sizes that only show that it works.
        quiet: Show nothing.
        device: "cpu" or "cuda", of a benchmark that runs on either; by default what it chooses.
    """
    name = ALIASES.get(name, name)
    if name == "list":
        return _list(quiet)
    if name == "calibrate":
        if device is not None:
            raise ConfigError("calibrate measures the whole machine: leave out --device")
        return _calibrate(out, quick, quiet)
    if name in MOVED:
        raise ConfigError(
            f"benchmark {name!r} is not in the package; in a checkout run: {MOVED[name]}"
        )
    if name not in BENCHMARKS:
        raise ConfigError(
            f"no benchmark {name!r}; there are {', '.join(_all())}.{closest(name, _all())}"
        )
    return measure(BENCHMARKS[name], out, quick=quick, quiet=quiet, device=device)


def _all() -> dict[str, str]:
    """What each benchmark measures."""
    found = {name: benchmark.about for name, benchmark in BENCHMARKS.items()}
    return dict(sorted({**found, "calibrate": calibrate.ABOUT}.items()))


def _list(quiet: bool) -> dict[str, Any]:
    say = say_to_console(quiet)
    for name, about in _all().items():
        say(f"{name:<18} {about}")
    return {"benchmarks": _all()}


def _calibrate(out: Path | None, quick: bool, quiet: bool) -> dict[str, Any]:
    say = say_to_console(quiet)
    found, path = calibrate.calibrate(out, say, quick=quick)
    for line in calibrate.calibration_lines(found, path):
        say(line)
    return calibrate.as_plain(found, path)
