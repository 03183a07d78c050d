"""`outsize demo` and `outsize bench`: look around, and measure on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the tour's runs and report.")] = Path(
        "outsize-demo"
    ),
    quick: Annotated[bool, typer.Option(help="A much smaller tour, to try the command.")] = False,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Take the tour: train on data made on the fly and look at a report."""
    from outsize.demo import take_tour

    return take_tour(out, quick=quick, quiet=as_json)


def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark; 'list' shows them.")] = "list",
    out: Annotated[
        Path | None,
        typer.Option(help="Also write the results to this folder; of calibrate, the file."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to try the command.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda, for a benchmark that runs on either."),
    ] = None,
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Run a benchmark on this machine, with its peers in the same process."""
    from outsize.bench import run_benchmark

    return run_benchmark(name, out, quick=quick, quiet=as_json, device=device)
