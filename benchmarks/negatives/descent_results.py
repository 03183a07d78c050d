"""Summaries of training runs with and without a negative cache."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.negatives.cached_descent import BETA, Descent
from benchmarks.slopes import slope_of_logs

_AS_GOOD = 1.05  # a final loss within 5% counts as equal


def run_row(run: Descent, seed: int) -> dict[str, Any]:
    """Summarize one run; means over steps interpolate linearly between probes."""
    last = run.probes[-1]

    def mean(name: str) -> float:
        area = sum(
            (after["step"] - before["step"]) * (after[name] + before[name]) / 2
            for before, after in itertools.pairwise(run.probes)
        )
        return area / last["step"]

    gained = run.probes[0]["loss"] - last["loss"]
    gradient, bias = mean("gradient"), mean("bias")
    return {
        "way": run.way.name,
        "T": run.num_steps,
        "seed": seed,
        "gradient": gradient,
        "bias": bias,
        "share": gradient / (2 * gained / (run.learning_rate * run.num_steps) + bias),
        "age": last["age"],
        "first_loss": run.probes[0]["loss"],
        "loss": last["loss"],
        "step_s": run.step_s,
    }


def mean_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per way and T: means over seeds, and all final losses."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["way"], row["T"]), []).append(row)
    return [
        {
            "way": way,
            "T": steps,
            "seeds": len(group),
            "losses": [row["loss"] for row in group],
            **{
                name: statistics.fmean(row[name] for row in group)
                for name in ("gradient", "bias", "share", "age", "first_loss", "loss", "step_s")
            },
        }
        for (way, steps), group in found.items()
    ]


def slopes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Slopes of log left and log bias² against log T, for ways that ran at several T."""
    found: dict[str, dict[str, float | None]] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        some = [row for row in mean_rows(rows) if row["way"] == way]
        if len(some) > 1:
            lengths = [row["T"] for row in some]
            biases = [row["bias"] for row in some]
            found[way] = {
                "gradient": slope_of_logs(lengths, [row["gradient"] for row in some]),
                "bias": slope_of_logs(lengths, biases) if min(biases) > 0 else None,
                "last_bias": slope_of_logs(lengths[-2:], biases[-2:]) if min(biases) > 0 else None,
            }
    return found


def as_good(rows: Sequence[dict[str, Any]], steps: int, peer: str) -> dict[str, float]:
    """Final loss of each way divided by that of a peer, at T = `steps`, means over seeds."""
    some = {row["way"]: row["loss"] for row in mean_rows(rows) if row["T"] == steps}
    return {way: loss / some[peer] for way, loss in some.items()}


def section(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes, rows = results["sizes"], results["rows"]
    main = sizes["main"]
    by_exact = as_good(rows, main, "exact")
    by_fresh = as_good(rows, main, "ρ = 1")
    lines = [
        "## Theorems 3 and 5: training with a cache\n",
        f"Two towers of two layers, {sizes['items']:,} items in clusters, {sizes['queries']:,} "
        f"queries, β = {BETA:g}, SGD with 32 queries per step and η = {sizes['rate']:g}/√T, one "
        "draw per query unless said otherwise. *Left* is the mean squared gradient of the exact "
        "loss over the steps, *bias²* the quantity that the theorems bound: the squared norm of "
        "expected minus exact gradient. *Share* is left over 2(L₀ − L_T)/(ηT) + bias²; where it is "
        "at most 1, Lemma 6 with its factor 2 holds without its last term at any smoothness. ρ = 1 "
        "differs from the exact softmax only in its draws, so a difference from ρ = 1 is due to "
        "staleness or to the sample. Drawn items are written back too, "
        f"{100 * 32 / sizes['items']:.2g}% of the corpus per step, which is more than the smallest "
        "ρ. These encoders cost next to nothing, so that *steps/s* shows the cost of the cache "
        "itself, not its savings.\n",
        f"### T = {main:,}\n",
        "| trained against | seeds | mean age | left | bias² | share | final loss (range) | over "
        "exact | over ρ = 1 | steps/s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in mean_rows(rows):
        if row["T"] == main:
            span = f"{min(row['losses']):.3f} to {max(row['losses']):.3f}"
            lines.append(
                f"| {row['way']} | {row['seeds']} | {row['age']:.3g} | {row['gradient']:.3g} | "
                f"{row['bias']:.2g} | {row['share']:.2f} | {row['loss']:.3f} ({span}) | "
                f"{by_exact[row['way']]:.3f} | {by_fresh[row['way']]:.3f} | "
                f"{1 / row['step_s']:.0f} |"
            )
    peers = ("exact", "ρ = 1")
    good = [way for way, over in by_fresh.items() if over <= _AS_GOOD and way not in peers]
    bad = [way for way, over in by_fresh.items() if over > _AS_GOOD]
    lines += [
        f"\nWithin {_AS_GOOD - 1:.0%} of the final loss of ρ = 1: {'; '.join(good) or 'none'}. "
        f"Beyond it: {'; '.join(bad) or 'none'}.\n",
        "### Several T\n",
        "Theorem 3's rate is kept where the slope of log left against log T is about −0.5 or less, "
        "and staleness falls faster than that where the slope of log bias² is less than that of "
        "left. The theorem's −1 is for small η: in the first steps at a large one scores move so "
        "far that the bias is at its most, whatever η is. And k is at most T, so that a ρ below "
        "1/T has not had its whole effect.\n",
        "| trained against | T | seeds | left | bias² | final loss | slope of left | "
        "of bias² (last two) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    found = slopes(rows)
    for row in mean_rows(rows):
        if row["way"] in found:
            slope = found[row["way"]]
            of_bias = "" if slope["bias"] is None else f"{slope['bias']:.2f}"
            if slope["last_bias"] is not None:
                of_bias += f" ({slope['last_bias']:.2f})"
            lines.append(
                f"| {row['way']} | {row['T']:,} | {row['seeds']} | {row['gradient']:.3g} | "
                f"{row['bias']:.2g} | {row['loss']:.3f} | {slope['gradient']:.2f} | {of_bias} |"
            )
    return "\n".join(lines) + "\n"
