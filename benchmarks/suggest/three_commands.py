"""From a CSV to a report in three commands, and the suggested run beside a tuned one.

    python -m benchmarks.suggest.three_commands --data DATA --seeds 3 --work DIR

DATA is a folder with `us_flights_2024_01.parquet` and `sba_loans.parquet`, which are written as CSV
first. `outsize init`, `train` and `report` are then called as a newcomer would: no file is edited.
The suggested run is trained beside the example that was tuned by hand (`examples/real`), on the
columns and split of either. `--share` keeps every n-th row of the file. Finished cells are kept in
`--work`, so an interrupted grid continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from benchmarks.het.staleness_runs import train_cells
from benchmarks.runner import typed_command, write_page
from outsize.bench.runner import Say, say_to_console
from outsize.training.strict_toml import override, to_toml
from outsize.training.toml_text import parse_toml

DATA_SETS = {"us_flights": "us_flights_2024_01.parquet", "sba_loans": "sba_loans.parquet"}
LIMIT = 0.01  # of AUC, that a suggested run may be below a tuned one
RUNS = ("suggested", "tuned")
COLUMNS = ("suggested", "tuned")
_EXAMPLES = Path(__file__).parents[2] / "examples" / "real"
_READING = ("kind", "path", "label", "standardize", "log1p", "categorical", "split")


def run_tree(
    suggested: Mapping[str, Any], tuned: Mapping[str, Any], run: str, columns: str, path: str
) -> dict[str, Any]:
    """A run with the settings of one file on the columns and the split of either.

    Args:
        suggested: The run file that `outsize init` wrote.
        tuned: The example.
        run: Whose model, optimizers, vocabularies and steps.
        columns: Whose columns and split.
        path: The data.
    """
    files = {"suggested": suggested, "tuned": tuned}
    own, other = files[run], files[columns]
    data = {key: value for key, value in own["data"].items() if key not in _READING}
    data |= {key: value for key, value in other["data"].items() if key in _READING}
    return {**own, "data": {**data, "path": [path]}}


def prepare(source: Path, work: Path, share: int, say: Say) -> dict[str, Any]:
    """Write the CSV and call `outsize init`; the run files of the data set.

    Args:
        source: The Parquet file.
        work: Folder for the CSV and the run file.
        share: Every how many-th row is kept.
        say: Shows progress.
    """
    name = source.stem
    csv, run = work / f"{name}-{share}.csv", work / f"{name}-{share}.toml"
    work.mkdir(parents=True, exist_ok=True)
    if not csv.exists():
        table = pq.read_table(source)
        pc.write_csv(table.take(pa.array(range(0, table.num_rows, share))), csv)
    say(f"outsize init {csv.name}")
    _outsize("init", csv, "--out", run, "--force")
    return {"csv": str(csv), "suggested": parse_toml(run.read_text())}


def one_run(say: Callable[[str], None], work: str, tree: str, **cell: Any) -> dict[str, Any]:
    """Train a cell and draw its report, by the commands."""
    words = [cell[key] for key in ("data_set", "run", "columns")]
    out = Path(work) / f"{'-'.join(words)}-{cell['seed']}"
    run = Path(f"{out}.toml")
    shutil.rmtree(out, ignore_errors=True)  # what an interrupted grid left
    run.write_text(to_toml(override(parse_toml(tree), [f"seed={cell['seed']}"])))
    summary = json.loads(_outsize("train", run, "--out", out, "--json"))
    _outsize("report", out)
    page = out / "report.html"
    found = {
        "auc": summary["test"]["auc"],
        "validation_auc": summary["validation"]["auc"],
        "steps": summary["steps"],
        "elapsed_s": summary["elapsed_s"],
        "report_bytes": page.stat().st_size,
    }
    say(f"{cell['data_set']}, {cell['run']} run on {cell['columns']} columns, seed "
        f"{cell['seed']}: AUC {found['auc']:.4f}, {found['elapsed_s']:.0f} s")  # fmt: skip
    return found


def finished(cell: Mapping[str, Any], say: Say, work: Path) -> list[dict[str, Any]]:
    """The results of a cell, if it was trained before."""

    def train(**given: Any) -> dict[str, Any]:
        raise LookupError

    try:
        return train_cells([cell], say, work, 1, train)
    except LookupError:
        return []


def _outsize(*words: object) -> str:
    """Call the command line in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "outsize", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"outsize {' '.join(map(str, words))} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def table(rows: list[dict[str, Any]], share: int) -> str:
    """The results as Markdown."""
    part = "All rows" if share == 1 else f"One row of {share}"
    lines = [
        f"{part} of each file, written as CSV; `outsize init`, `train` and `report` called without "
        "editing a file.",
        "Test AUC at the best validation, mean and standard deviation over seeds.",
        "",
        "| data | columns and split of | seeds | suggested run | tuned example | difference |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name in dict.fromkeys(row["data_set"] for row in rows):
        for columns in COLUMNS:
            found = {
                run: {row["seed"]: row["auc"] for row in rows
                      if (row["data_set"], row["columns"], row["run"]) == (name, columns, run)}
                for run in RUNS
            }  # fmt: skip
            seeds = set(found["suggested"]) & set(found["tuned"])
            if not seeds:
                continue
            scores = {run: [found[run][seed] for seed in sorted(seeds)] for run in RUNS}
            gap = statistics.mean(scores["suggested"]) - statistics.mean(scores["tuned"])
            text = f"{gap:+.4f}" if gap >= -LIMIT else f"**{gap:+.4f}**"
            whose = {"suggested": "the suggestion", "tuned": "the example"}[columns]
            lines.append(
                f"| {name} | {whose} | {len(seeds)} | {_spread(scores['suggested'])} | "
                f"{_spread(scores['tuned'])} | {text} |"
            )
    return "\n".join([*lines, "", f"Bold is more than {LIMIT} below.", ""])


def _spread(numbers: list[float]) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]:.4f}"
    return f"{statistics.mean(numbers):.4f} ± {statistics.stdev(numbers):.4f}"


def main() -> None:
    """Run the grid and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--sets", default=",".join(DATA_SETS), help="data sets, by commas")
    parser.add_argument("--columns", default=",".join(COLUMNS), help="whose columns, by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=int, default=1, help="keep every n-th row")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--finished", action="store_true", help="show what --work has so far")
    parser.add_argument("--work", type=Path, default=Path("runs/three-commands"))
    parser.add_argument("--out", type=Path, help="also write the results to this folder")
    given = parser.parse_args()
    say, work = say_to_console(), given.work.resolve()
    trees = {}
    for name in given.sets.split(","):
        files = prepare(given.data / DATA_SETS[name], work, given.share, say)
        tuned = parse_toml((_EXAMPLES / f"{name}.toml").read_text())
        trees[name] = partial(run_tree, files["suggested"], tuned, path=files["csv"])
    cells = [
        {"num_ranks": 1, "work": str(work), "data_set": name, "run": run, "columns": columns,
         "seed": seed, "tree": to_toml(tree(run=run, columns=columns))}
        for columns in given.columns.split(",") for seed in range(given.seeds)
        for name, tree in trees.items() for run in RUNS
    ]  # fmt: skip
    if given.finished:
        rows = [row for cell in cells for row in finished(cell, say, work)]
    else:
        rows = train_cells(cells, say, work, given.jobs, one_run)
    rows = [{key: row[key] for key in row if key not in ("work", "tree")} for row in rows]
    title = "three-commands: `outsize init`, `train`, `report` on two CSV files"
    command = typed_command("benchmarks.suggest.three_commands")
    facts = {"benchmark": "three-commands", "share": given.share, "rows": rows}
    body = table(rows, given.share)
    write_page("three-commands", title, command, body, given.out, say, **facts)


if __name__ == "__main__":
    main()
