"""The results of `benchmarks.negatives.encoder_grid` as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.negatives.encoder_cells import (
    CACHE,
    IN_BATCH,
    RANKING,
    Comparison,
    Plan,
    timed_name,
)

_MIB = 1 << 20


def table(plan: Plan, done: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """What has been trained so far: all methods, then how far the cache is above others."""
    timing = done.get("timing", {}).get("timing", {})
    lines = [*_said(plan, done, results), *_HEAD]
    compared = [*plan.comparisons(), *plan.widest()]
    runs = {one: _runs(plan, one, done) for one in compared}
    lines += [_row(plan, one, runs[one], timing) for one in _in_order(plan, compared) if runs[one]]
    lines += _trials(plan, done)
    return "\n".join([*lines, "", *_gains(plan, runs)]) + "\n"


def _said(plan: Plan, done: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    sizes = ", ".join(f"{name} has {size:,} items" for name, size in results["items"].items())
    untrained = done.get("timing", {}).get("untrained")
    before = "" if untrained is None else (
        f" Untrained, test MRR@10 on {plan.first} is {untrained['test']['mrr@10']:.4f}."
    )  # fmt: skip
    return [
        f"{results['encoder']}, fine-tuned ({results['max_tokens']} tokens; {sizes}), bfloat16 "
        f"autocast on a GPU. Each method and batch had {len(plan.rates) * len(plan.betas)} trials "
        f"of {plan.trial_steps} steps on {plan.first} (rates "
        f"{', '.join(f'{rate:g}' for rate in plan.rates)}, β "
        f"{', '.join(f'{beta:g}' for beta in plan.betas)}), and the best validation MRR@10 chose, "
        f"for {plan.second} and batch {4 * plan.large} as well; then seeds were trained and tested "
        "where their validation, at half of the steps and at the end, was best. Mean (range) over "
        f"seeds; all items are ranked.{before} Time and peak memory of a step are measured alone, "
        "in turns (median; range over turns), with weights, the optimizer's state and the cache. "
        f"`{RANKING}` is sentence-transformers' CachedMultipleNegativesRankingLoss; its steps take "
        f"as long together as those of the cache at batch {plan.large}, and its mini-batch is the "
        "fastest that needs no more memory.",
        "",
    ]


_HEAD = [
    "| set | negatives | batch | rate, β | steps | seeds | test MRR@10 | test recall@10 "
    "| validation MRR@10 | ms per step | s of steps | peak MiB |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
]


def _in_order(plan: Plan, compared: Sequence[Comparison]) -> list[Comparison]:
    methods = [IN_BATCH, CACHE, RANKING]
    return sorted(
        compared,
        key=lambda one: (one.data != plan.first, one.batch, methods.index(one.method)),
    )


def _runs(plan: Plan, compared: Comparison, done: Mapping[str, Any]) -> dict[int, Any]:
    """The records of a comparison, by seed."""
    runs = {seed: plan.final(compared, seed, done) for seed in compared.seeds}
    return {seed: done[run.key] for seed, run in runs.items() if run and run.key in done}


def _row(plan: Plan, one: Comparison, runs: Mapping[int, Any], timing: Mapping[str, Any]) -> str:
    records = list(runs.values())
    run = records[0]["run"]
    name = timed_name(one.method, one.batch, run["mini_batch"])
    method = one.method + (f" in {run['mini_batch']}" if run["mini_batch"] else "")
    at = timing.get(name) if one.data == plan.first else None
    took = "" if at is None else (
        f"{at['ms']:.1f} ({min(at['turns_ms']):.1f} to {max(at['turns_ms']):.1f})"
    )  # fmt: skip
    total = "" if at is None else f"{at['ms'] * run['steps'] / 1000:.0f}"
    peak = "" if at is None else f"{at['peak_bytes'] / _MIB:.0f}"
    scores = " | ".join(
        _spread([record[split][metric] for record in records])
        for split, metric in (("test", "mrr@10"), ("test", "recall@10"), ("validation", "mrr@10"))
    )
    return (
        f"| {one.data} | {method} | {one.batch} | {run['rate']:g}, {run['beta']:g} "
        f"| {run['steps']} | {len(records)} | {scores} | {took} | {total} | {peak} |"
    )


def _trials(plan: Plan, done: Mapping[str, Any]) -> list[str]:
    """The validation MRR@10 of every trial."""
    lines = ["", "Validation MRR@10 of the trials (rate, β):", ""]
    for one in _in_order(plan, plan.comparisons()):
        found = [run for run in plan.trials(one) if run.key in done]
        if one.data == plan.first and found:
            shown = ", ".join(
                f"{run.rate:g}, {run.beta:g}: {done[run.key]['validation']['mrr@10']:.4f}"
                for run in found
            )
            lines.append(f"- {one.method}, batch {one.batch}: {shown}")
    return lines


def _gains(plan: Plan, runs: Mapping[Comparison, Mapping[int, Any]]) -> list[str]:
    """How far the mean test MRR@10 of the cache is above others, over the seeds so far."""
    lines = []
    found = {(one.data, one.method, one.batch): by_seed for one, by_seed in runs.items()}
    small, large, widest = plan.small, plan.large, 4 * plan.large
    for data, batch, method, other in (
        (plan.first, small, IN_BATCH, small),
        (plan.first, large, IN_BATCH, large),
        (plan.first, small, IN_BATCH, large),
        (plan.first, large, RANKING, widest),
        (plan.second, large, IN_BATCH, large),
        (plan.first, widest, IN_BATCH, widest),
    ):
        ours = [_mrr(one) for one in found.get((data, CACHE, batch), {}).values()]
        theirs = [_mrr(one) for one in found.get((data, method, other), {}).values()]
        if ours and theirs:
            lines.append(
                f"- {data}: the cache at {batch} above {method} at {other}: "
                f"{statistics.mean(ours) - statistics.mean(theirs):+.4f} in the mean (seeds: "
                f"{len(ours)} and {len(theirs)}), {_ranges(ours, theirs)}"
            )
    return lines


def _ranges(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether values of one side are all above those of the other."""
    if min(len(ours), len(theirs)) < 2:
        return "one seed"
    apart = min(ours) > max(theirs) or max(ours) < min(theirs)
    return "ranges apart" if apart else "ranges overlap"


def _mrr(record: Mapping[str, Any]) -> float:
    return float(record["test"]["mrr@10"])


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.4f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.4f} to {max(values):.4f})"
