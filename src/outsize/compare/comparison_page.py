"""The HTML page of a comparison, `compare.html`: one self-contained file."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from string import Template

from outsize.compare.factors import Factors
from outsize.compare.plots import size_svg
from outsize.compare.results import Best, Comparison
from outsize.compare.text_tables import (
    best_lines,
    factors_table,
    kind_lines,
    losses_table,
)
from outsize.reporting.page import card, facts_table, html_table, page
from outsize.reporting.quantities import format_seconds
from outsize.training.strict_toml import encode, to_toml


def comparison_page(
    title: str,
    comparison: Comparison,
    best: Sequence[Best],
    factors: Mapping[str, Factors],
    environment: Mapping[str, str],
) -> str:
    """The page as HTML."""
    losses, by_factor = losses_table(comparison), "<p>No cell of full tables.</p>"
    if factors:
        found = factors_table(factors)
        by_factor = html_table(found.columns, found.rows)
    body = _BODY.substitute(
        cards="".join(card(name, value) for name, value in _headline(comparison).items()),
        loss_params=size_svg(comparison, "loss", "params"),
        loss_bytes=size_svg(comparison, "loss", "total_bytes"),
        quality=html.escape(comparison.labels[1]),
        quality_params=size_svg(comparison, "quality", "params"),
        quality_bytes=size_svg(comparison, "quality", "total_bytes"),
        best=_list(best_lines(comparison, best)),
        factors=by_factor,
        kinds=_list(kind_lines(factors)),
        losses_title=html.escape(losses.title),
        losses=html_table(losses.columns, losses.rows),
        unfinished=_unfinished(comparison),
        environment=facts_table(environment),
        config=html.escape(to_toml(encode(comparison.grid.run))),
    )
    return page(title, body)


def _headline(comparison: Comparison) -> dict[str, str]:
    facts = {}
    if comparison.full is not None:
        facts[f"test {comparison.labels[0]} of full tables"] = f"{comparison.full.loss.mean:.5f}"
        facts["their parameters"] = f"{comparison.full.params:,}"
    if "loss" in comparison.bayes:
        facts["best reachable (Bayes)"] = f"{comparison.bayes['loss']:.5f}"
    facts["methods"] = str(len(comparison.grid.methods))
    facts["budgets"] = str(len(comparison.grid.budgets))
    facts["seeds"] = str(comparison.grid.num_seeds)
    times = [o.result["elapsed_s"] for o in comparison.outcomes if o.status == "finished"]
    facts["time of all runs"] = format_seconds(sum(times))
    return facts


def _unfinished(comparison: Comparison) -> str:
    lines = [
        f"{outcome.cell.name}: {outcome.status}: {outcome.reason}"
        for outcome in comparison.outcomes
        if outcome.status != "finished"
    ]
    return f"<section><h2>Without a result</h2>{_list(lines)}</section><br>" if lines else ""


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


_BODY = Template("""<div class="cards">$cards</div>
<div class="grid">
<section><h2>Loss by parameters</h2>$loss_params</section>
<section><h2>Loss by bytes</h2>$loss_bytes</section>
<section><h2>$quality by parameters</h2>$quality_params</section>
<section><h2>$quality by bytes</h2>$quality_bytes</section>
</div>
<p>Lines are means over seeds; bars, and dashes about full tables, are at the lowest and the highest
seed; methods of one size are drawn side by side. Test metrics are those at the best validation.</p>
<section><h2>Best at each budget</h2>$best</section><br>
<section><h2>Compression at the loss of full tables</h2>
<p>At which cap a method's mean loss meets that of full tables, by a line and by a parabola in the
logarithm of the cap. By rows: Σ vocabulary / Σ min(vocabulary, rows that the cap pays for);
largest: the same of the largest table alone. By bytes: bytes of full tables over all bytes of the
method's, index maps included.</p>
$factors$kinds</section><br>
<section><h2>Every method and budget</h2>
<p>$losses_title.</p>$losses</section><br>
$unfinished<div class="grid">
<section><h2>Run</h2><pre>$config</pre></section>
<section><h2>Environment</h2>$environment</section>
</div>
""")
