"""`outsize plan`: what a run will take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson, Imports, RunFile, Settings, say
from outsize.user_modules import import_modules


def plan(
    run: RunFile,
    settings: Settings = [],  # noqa: B006  typer copies it
    ranks: Annotated[int, typer.Option(metavar="N", help="Number of ranks to plan for.")] = 1,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory budget per rank, such as 2GB; shows how to meet it."
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="SPEED", help="Bandwidth per rank, such as 25Gbit; predicts the time."
        ),
    ] = None,
    latency_us: Annotated[
        float, typer.Option(metavar="US", help="Latency of the link, in microseconds.")
    ] = 50.0,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of outsize bench calibrate. Default: that of this user, if any.",
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Training examples of the whole data, if the run reads a sample."
        ),
    ] = None,
    sample_steps: Annotated[
        int, typer.Option(metavar="N", help="Most steps to simulate, if rows are sharded.")
    ] = 500,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Say what a run will take: memory, steps, disk, bytes and time. Nothing is trained."""
    from outsize.plan import Planner
    from outsize.plan.budget import read_size, ways_to_fit
    from outsize.plan.calibration import default_calibration, load_calibration
    from outsize.plan.machine import Machine
    from outsize.plan.step_time import read_link
    from outsize.plan.text import plan_lines, way_lines
    from outsize.training import load_config

    import_modules(imports)
    limit = None if memory is None else read_size(memory)
    way = None if link is None else read_link(link, latency_us)
    if calibration is None and default_calibration().exists():
        calibration = default_calibration()
    speed = None if calibration is None else load_calibration(calibration)
    config = load_config(run, settings)
    planner = Planner(config, ranks, sample_steps, limit, Machine(way, speed), examples)
    found = planner.plan()
    ways = [] if memory is None else ways_to_fit(planner, found)
    if not as_json:
        for line in plan_lines(found):
            say(line)
        for line in [] if memory is None else way_lines(found, ways):
            say(line)
    return found.summary() | ({} if memory is None else {"ways": [w.summary() for w in ways]})
