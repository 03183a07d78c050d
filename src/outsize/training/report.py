"""`report.html`: one self-contained file.

Curves of the loss and the quality metrics, with the best reachable value where it is known, metrics
of the task's training, memory by table, the configuration and the environment. Figures are inline
SVG.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from outsize.contracts.messages import BYTE_KINDS
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment
from outsize.reporting.page import card, facts_table, figure_and_axes, html_table, page, svg_of
from outsize.reporting.quantities import format_bytes
from outsize.spec import MEMORY_KINDS, MemoryUse
from outsize.training.config import RunConfig
from outsize.training.metric_names import label_of, number_of, own_names, quality_names
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

_COLORS = {"train": "#9aa5b1", "validation": "#2563eb", "test": "#d97706", "bayes": "#16a34a"}
_MEMORY_COLORS = dict(zip(MEMORY_KINDS, ("#2563eb", "#94a3b8", "#d97706", "#16a34a"), strict=True))
_MAX_TABLES = 15


def write_report(
    folder: RunFolder,
    config: RunConfig,
    summary: Mapping[str, Any],
    memory: Mapping[str, MemoryUse],
) -> None:
    """Write the report of a run into its folder.

    Args:
        folder: Where its metrics are, and where the report goes.
        config: The run.
        summary: What `RunResult.summary` returns.
        memory: Cost of each table.
    """
    lines = folder.metrics()
    body = _BODY.substitute(
        cards="".join(card(name, value) for name, value in _headline(summary).items()),
        curves=_quality_section(lines),
        own=_own_section(lines),
        memory=memory_svg(memory),
        rows=_rows_section(lines),
        evaluations=_table([x for x in lines if x["split"] in ("validation", "test")]),
        reclusterings=_reclusterings(lines),
        config=html.escape(to_toml(encode(config))),
        environment=facts_table(environment()),
    )
    write_text_atomically(folder.report_file, page(folder.path.name or "run", body))


def curve_svg(lines: Sequence[Mapping[str, Any]], metric: str, label: str) -> str:
    """A metric over steps for every split that has it, with Bayes' value as a line."""
    figure, axes = figure_and_axes(6.4, 3.4)
    for split in ("train", "validation", "test"):
        points = [
            (line["step"], line[metric])
            for line in lines
            if line["split"] == split and line.get(metric) is not None
        ]
        if points:
            steps, values = zip(*points, strict=True)
            marker = None if split == "train" else "o"
            axes.plot(steps, values, marker=marker, ms=3, lw=1.4, color=_COLORS[split], label=split)
    bayes = [line[f"bayes_{metric}"] for line in lines if line.get(f"bayes_{metric}") is not None]
    if bayes:
        axes.axhline(
            bayes[0], color=_COLORS["bayes"], ls="--", lw=1.2, label="best reachable (Bayes)"
        )
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    if axes.has_data():
        axes.legend(frameon=False, fontsize=8)
    return svg_of(figure)


def memory_svg(memory: Mapping[str, MemoryUse]) -> str:
    """Bytes by table and kind: the largest tables, and the others together."""
    by_size = sorted(memory.items(), key=lambda item: -item[1].total_bytes)
    shown = dict(by_size[:_MAX_TABLES])
    if len(by_size) > _MAX_TABLES:
        others = [use for _, use in by_size[_MAX_TABLES:]]
        shown[f"{len(others)} others"] = sum(others, MemoryUse())
    figure, axes = figure_and_axes(6.4, 0.6 + 0.24 * max(4, len(shown)))
    names = list(shown)[::-1]
    left = [0.0] * len(names)
    for kind in MEMORY_KINDS:
        sizes = [shown[name].bytes_of(kind) / 1e6 for name in names]
        if any(sizes):
            axes.barh(names, sizes, left=left, color=_MEMORY_COLORS[kind], label=kind)
            left = [a + b for a, b in zip(left, sizes, strict=True)]
    axes.set_xlabel("MB")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return svg_of(figure)


def traffic_svg(lines: Sequence[Mapping[str, Any]]) -> str:
    """Bytes per step sent between ranks, by kind, and the hit rate of the cache, over steps."""
    steps = [line["step"] for line in lines]
    lengths = [now - before for before, now in zip([0, *steps], steps, strict=False)]
    figure, axes = figure_and_axes(6.4, 3.4)
    sent = [[line[f"sent_{kind}"] / n / 1e6 for line, n in zip(lines, lengths, strict=True)]
            for kind in BYTE_KINDS]  # fmt: skip
    axes.stackplot(steps, sent, labels=BYTE_KINDS, colors=list(_MEMORY_COLORS.values()), alpha=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("MB per step, all ranks")
    if any(line["hit_rate"] for line in lines):
        rate = axes.twinx()
        rate.plot(steps, [line["hit_rate"] for line in lines], color="#111827", lw=1.2)
        rate.set_ylim(0, 1)
        rate.set_ylabel("hit rate (line)")
    axes.legend(frameon=False, fontsize=8, loc="upper right")
    return svg_of(figure)


def _headline(summary: Mapping[str, Any]) -> dict[str, str]:
    test = summary["test"]
    names = ("loss", *quality_names(test))
    facts = {f"test {label_of(name)}": number_of(test[name]) for name in names}
    if "bayes_loss" in test:
        facts["above Bayes"] = f"{test['loss'] - test['bayes_loss']:+.5f}"
    if "calibration" in test:
        facts["calibration"] = number_of(test["calibration"], ".3f")
    facts["best step, of these metrics"] = f"{summary['validation'].get('step', 0):,}"
    facts[f"steps ({summary['stopped']})"] = f"{summary['steps']:,}"
    facts["embedding memory"] = format_bytes(summary["memory"]["total_bytes"])
    facts["time"] = f"{summary['elapsed_s']:,.0f} s"
    return facts


def _quality_section(lines: Sequence[Mapping[str, Any]]) -> str:
    """Curves of the loss and of each quality metric."""
    evaluated = dict.fromkeys(n for line in lines if line["split"] != "train" for n in line)
    return "".join(
        f"<section><h2>{html.escape(label_of(name))}</h2>{curve_svg(lines, name, label_of(name))}"
        "</section>"
        for name in ("loss", *quality_names(evaluated))
    )


def _own_section(lines: Sequence[Mapping[str, Any]]) -> str:
    """Metrics of this task only: curves, and values that never changed."""
    trained = [line for line in lines if line["split"] == "train"]
    steady: dict[str, str] = {}
    curves: list[str] = []
    for name in own_names(trained):
        values = {line[name] for line in trained if line.get(name) is not None}
        if len(values) == 1:
            steady[name] = f"{values.pop():g}"
        elif values:
            curves.append(f"<section><h2>{html.escape(name)}</h2>"
                          f"{curve_svg(trained, name, name)}</section>")  # fmt: skip
    if steady:
        curves.append(f"<section><h2>Throughout the run</h2>{facts_table(steady)}</section>")
    return f'<h2>Training</h2><div class="grid">{"".join(curves)}</div>' if curves else ""


def _reclusterings(lines: Sequence[Mapping[str, Any]]) -> str:
    """One table row per recluster, and per probe before one, if there are any."""
    rows = [line for line in lines if line["split"] in ("recluster", "probe")]
    rows = [
        {**row, "entropies": " ".join(f"{h:.2f}" for h in row.get("entropies", ()))} for row in rows
    ]
    return f"<section><h2>Reclusterings</h2>{_table(rows)}</section><br>" if rows else ""


def _rows_section(lines: Sequence[Mapping[str, Any]]) -> str:
    """What reading rows of other ranks cost, if there are any."""
    counted = [line for line in lines if line["split"] == "train" and "sent_rows" in line]
    if not counted:
        return ""
    total = sent_bytes(lines)
    lags = [line["largest_lag"] for line in counted if line.get("largest_lag") is not None]
    facts = {f"{kind} sent": format_bytes(size) for kind, size in total.items()}
    facts["all sent"] = format_bytes(sum(total.values()))
    facts["hit rate, at the end"] = f"{counted[-1]['hit_rate']:.3f}"
    facts["evictions"] = f"{sum(line['evictions'] for line in counted):,}"
    facts["largest lag of a copy that was read"] = f"{max(lags):,}" if lags else "not asked"
    return (
        f'<div class="grid"><section><h2>Rows between ranks</h2>{traffic_svg(counted)}</section>'
        f"<section><h2>Over the whole run</h2>{facts_table(facts)}</section></div>"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return html_table(names, [[_cell(row.get(name, "")) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if value is None or isinstance(value, float):
        return number_of(value)
    return str(value)


_BODY = Template("""<div class="cards">$cards</div>
<div class="grid">
$curves
<section><h2>Embedding memory by table</h2>$memory</section>
<section><h2>Environment</h2>$environment</section>
</div>
<section><h2>Evaluations</h2>$evaluations</section><br>
$own
$rows
$reclusterings
<section><h2>Configuration</h2><pre>$config</pre></section>
""")
