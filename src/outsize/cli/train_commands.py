"""Runs: `outsize train`, `outsize compare` and `outsize report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson, Imports, RunFile, Settings, say
from outsize.errors import ConfigError
from outsize.launched import is_first_rank
from outsize.user_modules import import_modules

_SEVERAL = Path("runs.html")


def train(
    run: RunFile,
    settings: Settings = [],  # noqa: B006  typer copies it
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: runs/<name of RUN.toml>.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out.")] = False,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Train a model and write a run folder with its log, checkpoints and report."""
    from outsize.training import load_config
    from outsize.training import train as train_run
    from outsize.training.metric_names import in_words

    import_modules(imports)
    config = load_config(run, settings)
    folder = out or Path("runs") / run.stem
    summary = train_run(config, folder, resume=resume, quiet=as_json).summary()
    if not as_json and is_first_rank():
        best = f"best step {summary['validation']['step']:,} of {summary['steps']:,}"
        say(f"{best}  test  {in_words(summary['test'])}  →  {folder / 'report.html'}")
    return summary


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="The run, a TOML file; or the folders of finished runs.", metavar="RUN.toml|RUN..."
        ),
    ],
    tables: Annotated[
        list[str],
        typer.Option(
            help="Table methods, separated by commas. Default: all. Full tables always run."
        ),
    ] = [],  # noqa: B006
    budgets: Annotated[
        list[str],
        typer.Option(
            help="Caps per table, separated by commas. "
            "Default: 1/1000, 1/100 and 1/10 of the largest."
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(help="Runs per method and budget.")] = 3,
    unit: Annotated[str, typer.Option(help="Unit of budgets: parameters or bytes.")] = "parameters",
    settings: Settings = [],  # noqa: B006
    out: Annotated[
        Path | None, typer.Option(help="Folder of results. Default: compare/<name of RUN.toml>.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Cells in parallel; 0 trains them in this process. "
            "Default: one per two cores, or GPU."
        ),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Compare table methods with full tables at several budgets, or runs that are finished."""
    from outsize.compare import Grid, read_budgets, read_methods, read_unit
    from outsize.compare import compare as compare_tables
    from outsize.training import load_config

    import_modules(imports)
    if len(runs) > 1 or runs[0].is_dir():
        return _compare_finished(runs, as_json)
    (run,) = runs
    grid = Grid(
        load_config(run, settings),
        read_methods(tables),
        read_budgets(budgets),
        read_unit(unit),
        seeds,
    )
    folder = out or Path("compare") / run.stem
    return compare_tables(grid, folder, workers=workers, quiet=as_json)


def _compare_finished(folders: list[Path], as_json: bool) -> dict[str, Any]:
    from outsize.compare import compare_runs, runs_table

    for folder in folders:
        if folder.suffix == ".toml":
            raise ConfigError(
                f"{folder} is a run file: compare tables on one of them, or name folders of runs"
            )
    found = compare_runs(folders)
    if not as_json:
        table = runs_table(found)
        say(table.title)
        widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
        for row in (table.columns, *table.rows):
            say("  ".join(map(str.ljust, row, widths)).rstrip())
    return {"runs": found}


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="The page. Default: RUN/report.html, or runs.html for several runs.",
        ),
    ] = None,
    imports: Imports = [],  # noqa: B006
    as_json: AsJson = False,
) -> dict[str, Any]:
    """Write the report of a run again, finished or not, or show several runs in one page."""
    from outsize.compare import overlay_page, read_runs, result_facts
    from outsize.files import write_text_atomically
    from outsize.training.report import run_page

    import_modules(imports)
    found = read_runs(runs)
    is_one = len(found) == 1
    page = run_page(found[0].folder) if is_one else overlay_page(found)
    file = out or (found[0].folder.report_file if is_one else _SEVERAL)
    write_text_atomically(file, page)
    if not as_json:
        say(f"{len(found)} run{'' if is_one else 's'}  →  {file}")
    return {"out": str(file), "runs": result_facts(found)}
