"""`outsize report`: the report of a run again, or several runs in one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outsize.cli.command_options import AsJson, Imports, say
from outsize.user_modules import import_modules

_SEVERAL = Path("runs.html")


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
