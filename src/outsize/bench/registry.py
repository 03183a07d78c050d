"""Benchmarks by name, and the files their results are kept in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outsize.bench import (
    dlrm,
    encode,
    kmeans,
    least_squares,
    negative_sampling,
    negative_theory,
    recluster,
    staleness,
    staleness_epochs,
    staleness_theory,
    staleness_widths,
    tables,
)
from outsize.errors import ConfigError
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        about: What it measures, in a line.
        run: Takes `quick` and a function that shows progress, and returns plain results.
        table: Turns results into Markdown.
    """

    about: str
    run: Callable[[bool, Callable[[str], None]], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]


BENCHMARKS: dict[str, Benchmark] = {
    "dlrm": Benchmark(dlrm.ABOUT, dlrm.run, dlrm.table),
    "encode": Benchmark(encode.ABOUT, encode.run, encode.table),
    "kmeans": Benchmark(kmeans.ABOUT, kmeans.run, kmeans.table),
    "least-squares": Benchmark(least_squares.ABOUT, least_squares.run, least_squares.table),
    "negative-sampling": Benchmark(
        negative_sampling.ABOUT, negative_sampling.run, negative_sampling.table
    ),
    "negative-theory": Benchmark(negative_theory.ABOUT, negative_theory.run, negative_theory.table),
    "recluster": Benchmark(recluster.ABOUT, recluster.run, recluster.table),
    "staleness": Benchmark(staleness.ABOUT, staleness.run, staleness.table),
    "staleness-epochs": Benchmark(
        staleness_epochs.ABOUT, staleness_epochs.run, staleness_epochs.table
    ),
    "staleness-theory": Benchmark(
        staleness_theory.ABOUT, staleness_theory.run, staleness_theory.table
    ),
    "staleness-widths": Benchmark(
        staleness_widths.ABOUT, staleness_widths.run, staleness_widths.table
    ),
    "tables": Benchmark(tables.ABOUT, tables.run, tables.table),
}


def run_benchmark(
    name: str, out: Path | None = None, *, quick: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Run one benchmark; show its table, and keep table and numbers in `out`.

    Args:
        name: A key of `BENCHMARKS`, or "list".
        out: Folder for `<name>-cpu.md` and `.json` (`-gpu` where it ran on one).
        quick: Sizes that only show that it works.
        quiet: Show nothing.
    """
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if name == "list":
        for key, benchmark in BENCHMARKS.items():
            say(f"{key:<18} {benchmark.about}")
        return {"benchmarks": {key: benchmark.about for key, benchmark in BENCHMARKS.items()}}
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    benchmark = BENCHMARKS[name]
    results = {
        "benchmark": name,
        "command": f"outsize bench {name}{' --quick' if quick else ''}",
        "environment": environment(),
        **benchmark.run(quick, say),
    }
    text = _page(results, benchmark)
    say(text)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stem = f"{name}-{'gpu' if 'gpu' in results['environment'] else 'cpu'}"
        write_text_atomically(out / f"{stem}.json", json.dumps(results, indent=1) + "\n")
        write_text_atomically(out / f"{stem}.md", text)
    return results


def _page(results: dict[str, Any], benchmark: Benchmark) -> str:
    facts = "".join(f"- {key}: {value}\n" for key, value in results["environment"].items())
    return (
        f"# {results['benchmark']}: {benchmark.about}\n\n`{results['command']}`\n\n{facts}\n"
        f"{benchmark.table(results)}"
    )
