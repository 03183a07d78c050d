"""Commands of benchmarks: `python -m benchmarks.FOLDER.NAME [--quick] [--out DIR]`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outsize.bench import Benchmark, measure
from outsize.bench.runner import results_page, results_stem, write_results
from outsize.reporting.environment import environment


def run_command(benchmark: Benchmark, words: Sequence[str] | None = None) -> None:
    """Run a benchmark as a command.

    Args:
        benchmark: What to run.
        words: The words of the command line; by default those of this process.
    """
    given = benchmark_parser(benchmark).parse_args(words)
    measure(benchmark, given.out, quick=given.quick)


def benchmark_parser(benchmark: Benchmark, *, has_quick: bool = True) -> argparse.ArgumentParser:
    """The options that all benchmarks have.

    Args:
        benchmark: What the command runs.
        has_quick: Whether it has small sizes to try it with.
    """
    parser = argparse.ArgumentParser(prog=benchmark.command, description=benchmark.about)
    if has_quick:
        parser.add_argument("--quick", action="store_true", help="small sizes, to try the command")
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    return parser


def typed_command(module: str) -> str:
    """The command of this process, as a user types it.

    Args:
        module: The script, such as `benchmarks.het.eviction`.
    """
    return f"python -m {module} {shlex.join(sys.argv[1:])}".strip()


def write_page(
    name: str,
    title: str,
    command: str,
    body: str,
    out: Path | None,
    say: Callable[[str], None] | None = None,
    **facts: Any,
) -> None:
    """Write the results of a script and their page to a folder.

    Args:
        name: The name of the files, without the device.
        title: The title of the page.
        command: The command, as a user types it.
        body: The page below its head.
        out: The folder, if any.
        say: Shows the page; by default nothing does.
        **facts: The results besides command and environment.
    """
    results = {"command": command, "environment": environment(), **facts}
    page = results_page(title, results, body)
    if say is not None:
        say(page)
    if out is not None:
        write_results(out / results_stem(name, results["environment"]), results, page)
