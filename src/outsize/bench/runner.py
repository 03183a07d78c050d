"""Run one benchmark, show its table and write its results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from outsize.errors import ConfigError
from outsize.files import whole_file
from outsize.reporting.environment import environment
from outsize.reporting.progress import print_line

Say = Callable[[str], None]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark.

    Attributes:
        name: The name of its results files, without the device.
        command: The command that runs it, as written in its results.
        about: What it measures, in one line.
        run: Takes `quick` and a function that shows progress; returns results that JSON can hold.
        table: Turns results into Markdown.
        run_on: As `run`, on a device; `None` if the device is not for the user to choose.
    """

    name: str
    command: str
    about: str
    run: Callable[[bool, Say], dict[str, Any]]
    table: Callable[[dict[str, Any]], str]
    run_on: Callable[[bool, Say, str], dict[str, Any]] | None = None


def measure(
    benchmark: Benchmark,
    out: Path | None = None,
    *,
    quick: bool = False,
    quiet: bool = False,
    device: str | None = None,
) -> dict[str, Any]:
    """Run a benchmark, show its page on standard error, and return its results.

    Args:
        benchmark: What to run.
        out: Folder for the results files (`results_stem` gives their name); none by default.
        quick: Use sizes that only show that it works.
        quiet: Show nothing.
        device: "cpu" or "cuda", of a benchmark that has `run_on`; by default what it chooses.
    """
    say = say_to_console(quiet)
    run = benchmark.run if device is None else _on_device(benchmark, device)
    words = (f" --device {device}" if device else "") + (" --quick" if quick else "")
    results = {
        "benchmark": benchmark.name,
        "command": benchmark.command + words,
        "environment": environment(),
        **run(quick, say),
    }
    page = results_page(f"{benchmark.name}: {benchmark.about}", results, benchmark.table(results))
    say(page)
    if out is not None:
        stem = results_stem(benchmark.name, results["environment"], device)
        write_results(out / stem, results, page)
    return results


def _on_device(benchmark: Benchmark, device: str) -> Callable[[bool, Say], dict[str, Any]]:
    if benchmark.run_on is None:
        raise ConfigError(
            f"benchmark {benchmark.name!r} has no choice of device: leave out --device"
        )
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device must be cpu or cuda, but got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, but this machine has no usable CUDA device")
    run_on = benchmark.run_on
    return lambda quick, say: run_on(quick, say, device)


def say_to_console(quiet: bool = False) -> Say:
    """A function that prints text to standard error; one that prints nothing if `quiet`."""
    return partial(print_line, Console(stderr=True, quiet=quiet))


def results_stem(name: str, facts: Mapping[str, str], device: str | None = None) -> str:
    """The name of results files without their ending: `dlrm-cpu`, or `dlrm-gpu` with a GPU.

    Args:
        name: The name of the benchmark.
        facts: The environment it ran in, as `environment()` describes it.
        device: The device that was asked for, if any.
    """
    on_gpu = device == "cuda" if device else "gpu" in facts
    return f"{name}-{'gpu' if on_gpu else 'cpu'}"


def results_page(title: str, results: Mapping[str, Any], body: str) -> str:
    """Results as a Markdown page: title, command, environment, then `body`."""
    facts = "".join(f"- {key}: {value}\n" for key, value in results["environment"].items())
    return f"# {title}\n\n`{results['command']}`\n\n{facts}\n{body}"


def write_results(stem: Path, results: Mapping[str, Any], page: str) -> None:
    """Write `<stem>.json` and `<stem>.md`, and the folder if there is none.

    Both are written whole, or neither is.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    texts = {".json": json.dumps(results, indent=1) + "\n", ".md": page}
    with contextlib.ExitStack() as stack:
        for ending, text in texts.items():
            file = stack.enter_context(whole_file(stem.with_name(f"{stem.name}{ending}")))
            file.write(text.encode())
            file.flush()  # a full disk is noticed before the first file gets its name
