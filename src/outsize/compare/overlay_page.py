"""The page of several runs: common plots, a table of results, and how the run files differ."""

from __future__ import annotations

import html
from collections.abc import Sequence
from string import Template
from typing import Any

from outsize.compare.finished import facts_of, runs_table
from outsize.compare.named_runs import NamedRun, config_differences
from outsize.compare.overlay_plots import has_metric, has_times, overlay_svg, run_colors
from outsize.reporting.page import html_table, page
from outsize.training.metric_names import capitalized, label_of, quality_names
from outsize.training.report.calibration_plot import calibration_svg, calibrations_of

_OF_TRAINING = {"examples_per_s": "examples per second", "gradient_norm": "gradient norm"}


def overlay_page(runs: Sequence[NamedRun]) -> str:
    """The page as HTML.

    A metric that several runs have is drawn in one plot, whatever their tasks are. Losses are drawn
    together only within a task, since those of two tasks are different quantities.
    """
    colors = run_colors(runs)
    body = _BODY.substitute(
        notes="".join(f"<p>{html.escape(note)}</p>" for note in _notes(runs)),
        results=_results(runs),
        curves="".join(_curves(runs, colors)),
        training="".join(_training(runs, colors)),
        differences=_differences(runs),
    )
    names = ", ".join(run.name for run in runs[:4])
    more = "" if len(runs) <= 4 else f" and {len(runs) - 4} more"
    return page(f"{names}{more}", body)


def result_facts(runs: Sequence[NamedRun]) -> list[dict[str, Any]]:
    """Metrics, memory and time of training of each run, as far as they are known."""
    return [facts_of(run.folder, run.config, run.history) for run in runs]


def _results(runs: Sequence[NamedRun]) -> str:
    facts = [{**f, "run": run.name} for run, f in zip(runs, result_facts(runs), strict=True)]
    table = runs_table(facts)
    return html_table(table.columns, table.rows)


def _notes(runs: Sequence[NamedRun]) -> list[str]:
    tasks = {run.task: [] for run in runs}  # type: dict[str, list[str]]
    for run in runs:
        tasks[run.task].append(run.name)
    notes = []
    if len(tasks) > 1:
        parts = "; ".join(f"{task}: {', '.join(names)}" for task, names in tasks.items())
        notes.append(
            f"These runs are of different tasks ({parts}). A metric that they share is drawn in "
            "one plot; losses are drawn by task."
        )
    differing = [key for key in config_differences(runs) if key.startswith("data.")]
    if differing and len(tasks) == 1:
        notes.append(
            f"These runs were trained on different data ({', '.join(differing[:5])}): compare "
            "their metrics with care."
        )
    return notes


def _curves(runs: Sequence[NamedRun], colors: dict[str, str]) -> list[str]:
    """Plots of the loss of each task, of each quality metric, and of the calibration."""
    found = []
    by_task: dict[str, list[NamedRun]] = {}
    for run in runs:
        by_task.setdefault(run.task, []).append(run)
    for task, members in by_task.items():
        label = members[0].config.loss_label
        name = label[0].upper() + label[1:]
        title = name if len(by_task) == 1 else f"{name} ({task})"
        found.append(_by_step_and_time(title, members, "loss", label, colors))
    names = dict.fromkeys(
        name
        for run in runs
        for line in run.history.of("validation")
        for name in quality_names(line)
    )
    for name in names:
        found.append(_by_step_and_time(label_of(name), runs, name, label_of(name), colors))
    rates = {run.name: calibrations_of(run.history).get("test") for run in runs}
    if known := {name: line for name, line in rates.items() if line is not None}:
        drawn = calibration_svg(known, colors)
        found.append(_section("Calibration on the test split", drawn, _absent(runs, known)))
    return found


def _training(runs: Sequence[NamedRun], colors: dict[str, str]) -> list[str]:
    found = []
    for metric, label in _OF_TRAINING.items():
        members = [run for run in runs if has_metric(run, metric)]
        if members:
            drawn = overlay_svg(members, metric, label, "step", colors)
            without = _absent(runs, {run.name for run in members})
            found.append(_section(capitalized(label), drawn, without))
    return found


def _by_step_and_time(
    title: str, runs: Sequence[NamedRun], metric: str, label: str, colors: dict[str, str]
) -> str:
    title = capitalized(title)
    members = [run for run in runs if has_metric(run, metric)]
    without = _absent(runs, {run.name for run in members})
    by_step = overlay_svg(members, metric, label, "step", colors)
    sections = _section(f"{title} by step", by_step, without)
    timed = [run for run in members if has_times(run)]
    if timed:
        by_time = overlay_svg(timed, metric, label, "time", colors)
        note = _absent(members, {run.name for run in timed}, "times in the log of")
        sections += _section(f"{title} by time", by_time, note)
    return sections


def _absent(runs: Sequence[NamedRun], known: Any, what: str = "values of") -> str:
    """Which runs are not in a plot."""
    names = [run.name for run in runs if run.name not in known]
    return f"There are no {what} {', '.join(names)}." if names else ""


def _section(title: str, drawn: str, note: str) -> str:
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{drawn}{below}</section>"


def _differences(runs: Sequence[NamedRun]) -> str:
    found = config_differences(runs)
    if not found:
        return "<p>None: their configurations are the same.</p>"
    rows = [[key, *("–" if v is None else str(v) for v in values)] for key, values in found.items()]
    return html_table(["setting", *(run.name for run in runs)], rows)


_BODY = Template("""$notes
<section><h2>Test metrics at the best validation</h2>$results</section><br>
<p>Losses and quality metrics are of the validation split, dashed lines of training.</p>
<div class="grid">
$curves
$training
</div>
<section><h2>Differences between the run files</h2>$differences</section>
""")
