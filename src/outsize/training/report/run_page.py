"""The page of one run, from what its folder holds."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from outsize.errors import ConfigError
from outsize.files import write_text_atomically
from outsize.reporting.colors import SPLITS
from outsize.reporting.page import card, facts_table, html_table, page
from outsize.reporting.quantities import format_bytes, format_seconds
from outsize.spec import MemoryUse
from outsize.training.config import RunConfig
from outsize.training.metric_names import (
    capitalized,
    label_of,
    metrics_of,
    number_of,
    own_names,
    quality_names,
)
from outsize.training.report.calibration_plot import (
    calibration_note,
    calibration_svg,
    calibrations_of,
)
from outsize.training.report.curves import curve_svg, rates_svg
from outsize.training.report.history import RunHistory
from outsize.training.report.memory_plot import memory_svg
from outsize.training.report.traffic_plot import counted_lines, per_step_lines, traffic_svg
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

_SPEEDS = {"examples_per_s": "examples per second", "gradient_norm": "gradient norm"}
_TWO_LOSSES = (
    "In training, a query is scored against the negatives of its step; in validation and test, "
    "against all items."
)


def write_report(folder: RunFolder) -> None:
    """Write `report.html` of a run, finished or not, of this version or an older one."""
    write_text_atomically(folder.report_file, run_page(folder))


def run_page(folder: RunFolder) -> str:
    """The report of a run as HTML.

    Raises:
        ConfigError: There is no run, or it has logged nothing yet.
    """
    history, config = history_of(folder), folder.config()
    summary = folder.summary() or {}
    memory = memory_of(summary)
    headline = _headline(history, summary, config.loss_label)
    body = _BODY.substitute(
        note=_unfinished_note(history, summary),
        cards="".join(card(name, value) for name, value in headline.items()),
        curves=_quality_section(history, config) + _calibration_section(history),
        training=_training_section(history, config),
        memory=memory_svg(memory) if memory else "<p>Written when the run has ended.</p>",
        rows=_rows_section(history),
        evaluations=_table(
            [
                {"step": x["step"], "split": x["split"], **metrics_of(x)}
                for x in history.lines
                if x["split"] in ("validation", "test")
            ]
        ),
        reclusterings=_reclusterings(history),
        config=html.escape(to_toml(encode(config))),
        environment=facts_table(summary.get("environment") or {"environment": "not recorded"}),
    )
    return page(folder.path.resolve().name or "run", body)


def history_of(folder: RunFolder) -> RunHistory:
    """The log of a run; raises a `ConfigError` if there is no run, or nothing was logged yet."""
    if not folder.holds_run():
        raise ConfigError(
            f"{folder.path} holds no run: name a folder that outsize train has written"
        )
    history = RunHistory(folder.metrics())
    if not history.lines:
        raise ConfigError(
            f"the run in {folder.path} has no metrics yet: wait for its first log line, or "
            "continue it with outsize train --resume"
        )
    return history


def memory_of(summary: Mapping[str, Any]) -> dict[str, MemoryUse]:
    """Memory by table and cache; of an older run all together, and of one without a summary {}."""
    if not summary:
        return {}
    if "memory_by_part" in summary:
        return {name: MemoryUse(**use) for name, use in summary["memory_by_part"].items()}
    total = summary["memory"]
    if "bytes_by_device" not in total:
        return {}
    return {"all": MemoryUse(total.get("num_parameters", 0), total["bytes_by_device"])}


def _unfinished_note(history: RunHistory, summary: Mapping[str, Any]) -> str:
    if summary.get("steps", -1) >= history.last_step:
        return ""
    return (
        f"<p>This run has not ended: it is shown as it was at step {history.last_step:,}, the last "
        "one in its log.</p>"
    )


def _headline(history: RunHistory, summary: Mapping[str, Any], loss_label: str) -> dict[str, str]:
    facts = {}
    if tests := history.of("test"):
        test = metrics_of(tests[-1])
        for name in ("loss", *quality_names(test)):
            facts[f"test {label_of(name, loss_label)}"] = number_of(test.get(name))
        loss, bayes = test.get("loss"), test.get("bayes_loss")
        if loss is not None and bayes is not None:
            facts["above Bayes"] = f"{loss - bayes:+.5f}"
        if "calibration" in test:
            facts["calibration"] = number_of(test["calibration"], ".3f")
    if history.best_step is not None:
        facts["best step, of these metrics"] = f"{history.best_step:,}"
    stopped = summary.get("stopped")
    facts[f"steps ({stopped})" if stopped else "steps"] = f"{history.last_step:,}"
    if summary:
        facts["embedding memory"] = format_bytes(summary["memory"]["total_bytes"])
    if history.train_s is not None:
        facts["time of training"] = format_seconds(history.train_s)
    elif summary:
        facts["time"] = format_seconds(summary["elapsed_s"])
    return facts


def _quality_section(history: RunHistory, config: RunConfig) -> str:
    """Curves of the loss and of each quality metric."""
    evaluated = dict.fromkeys(n for x in history.lines if x["split"] != "train" for n in x)
    figures = []
    for name in ("loss", *quality_names(evaluated)):
        label = label_of(name, config.loss_label)
        drawn = curve_svg(history.lines, name, label)
        if name == "loss" and config.negatives is not None:
            drawn += f"<p>{_TWO_LOSSES}</p>"
        figures.append(_figure(capitalized(label), drawn))
    return "".join(figures)


def _calibration_section(history: RunHistory) -> str:
    """Predicted against observed rates, if they were logged."""
    found = calibrations_of(history)
    if not found:
        return ""
    note = calibration_note(list(found.values()))
    return _figure("Calibration", f"{calibration_svg(found, SPLITS)}<p>{html.escape(note)}</p>")


def _training_section(history: RunHistory, config: RunConfig) -> str:
    """Learning rate, throughput, gradient norm, and the metrics of this task only."""
    trained = history.of("train")
    if not trained:
        return (
            "<h2>Training</h2><p>There is no training line in the log, as one is written every "
            f"{config.train.log_every:,} steps. Lower train.log_every for a run this short.</p>"
        )
    steady: dict[str, str] = {}
    figures: list[str] = []
    if history.points("learning_rate", "train"):
        figures.append(_figure("Learning rate", rates_svg(history.lines)))
    for name, label in _SPEEDS.items():
        if history.points(name, "train"):
            is_norm = name == "gradient_norm"
            drawn = curve_svg(history.lines, name, label, log_scale=is_norm)
            figures.append(_figure(capitalized(label), drawn))
    for name in own_names(trained):
        values = {line[name] for line in trained if line.get(name) is not None}
        if len(values) == 1 and len(trained) > 1:
            steady[name] = f"{values.pop():g}"
        elif values:
            figures.append(_figure(name, curve_svg(history.lines, name, name)))
    if steady:
        figures.append(_figure("Throughout the run", facts_table(steady)))
    return f'<h2>Training</h2><div class="grid">{"".join(figures)}</div>' if figures else ""


def _reclusterings(history: RunHistory) -> str:
    """A table of reclusterings, and one of the probes before them, if there are any."""
    found = []
    for title, split in (("Reclusterings", "recluster"), ("Probes", "probe")):
        lines = [line for line in history.lines if line["split"] == split]
        rows = [{name: line[name] for name in line if name != "split"} for line in lines]
        for row in rows:
            if "entropies" in row:
                row["entropies"] = " ".join(f"{h:.2f}" for h in row["entropies"])
        if rows:
            found.append(f"{_figure(title, _table(rows))}<br>")
    return "".join(found)


def _rows_section(history: RunHistory) -> str:
    """What reading rows of other ranks cost, if there are any."""
    counted = counted_lines(history)
    if not counted:
        return ""
    total = sent_bytes(history.lines)
    lags = [line["largest_lag"] for line in counted if line.get("largest_lag") is not None]
    facts = {f"{kind} sent": format_bytes(size) for kind, size in total.items()}
    facts["all sent"] = format_bytes(sum(total.values()))
    facts["hit rate, at the end"] = f"{per_step_lines(history)[-1]['hit_rate']:.3f}"
    facts["evictions"] = f"{sum(line['evictions'] for line in counted):,}"
    facts["largest lag of a copy that was read"] = f"{max(lags):,}" if lags else "not asked"
    last = counted[-1]["step"]
    span = "the whole run" if last == history.last_step else f"steps 1 to {last:,}"
    return (
        f'<div class="grid">{_figure("Rows between ranks", traffic_svg(history))}'
        f"{_figure(f'Over {span}', facts_table(facts))}</div>"
    )


def _figure(title: str, content: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{content}</section>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return html_table(names, [[_cell(row.get(name, "")) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if value is None or isinstance(value, float):
        return number_of(value)
    return str(value)


_BODY = Template("""$note<div class="cards">$cards</div>
<div class="grid">
$curves
<section><h2>Embedding memory by table</h2>$memory</section>
</div>
$training
$rows
<section><h2>Evaluations</h2>$evaluations</section><br>
$reclusterings
<section><h2>Environment</h2>$environment</section><br>
<section><h2>Configuration</h2><pre>$config</pre></section>
""")
