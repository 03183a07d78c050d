"""Clustering while popular ids change: early and late clusterings on a log with drift.

    python -m benchmarks.cce.drift examples/drift.toml --budgets 2560 --seeds 3

The CCE text clusters early and asks whether more clusterings help under a shift of the
distribution. Here new ids rise to the top all the time, so that an early clustering has not seen
many of those that matter in the end: they get the code nearest to an untrained vector. Test
examples are divided by when the ids of the largest feature were first seen in training. The log
is synthetic, and its ids have planted clusters. Finished cells are kept in `--work`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from benchmarks.cce.grid import (
    Cell,
    Row,
    grid_parser,
    mean_and_range,
    train_grid,
    write_grid,
)
from benchmarks.cce.variant_grid import Variant, variant_cells
from outsize.data import ClickData
from outsize.metrics import ClickMetrics
from outsize.training import load_config, train
from outsize.training.tables_config import TablesConfig

_COUNT, _REST = "embeddings.recluster.count=", "embeddings.recluster.rest="
VARIANTS: dict[str, Variant] = {
    "none": Variant("cce", (f"{_COUNT}0",)),
    "1 at a quarter": Variant("cce", (f"{_COUNT}1", f"{_REST}0.75")),
    "1 in the middle": Variant("cce", (f"{_COUNT}1", f"{_REST}0.5")),
    "2, the last in the middle": Variant("cce", (f"{_COUNT}2", f"{_REST}0.5")),
    "2, the last at three quarters": Variant("cce", (f"{_COUNT}2", f"{_REST}0.25")),
    "4, the last at nine tenths": Variant("cce", (f"{_COUNT}4", f"{_REST}0.1")),
}
GROUPS = ("all", "seen in the first quarter", "first seen later", "first seen after the last")
_EXAMPLES = 10_000


def one_cell(cell: Cell) -> Row:
    """Train a schedule; test metrics of the last step by when ids were first seen."""
    variant = VARIANTS[cell["variant"]]
    tables = (
        f'embeddings={{kind="tables", dim=16, method="{variant.method}", '
        f"max_params={cell['budget']}}}"
    )
    settings = [*cell["settings"], tables, *variant.settings, f"seed={cell['seed']}"]
    config = load_config(cell["run"], settings)
    result = train(config, quiet=True)
    data: Any = config.data.build()
    num_train = data.num_examples("train")
    num_steps = data.num_batches("train", config.train.batch_size)
    assert isinstance(config.embeddings, TablesConfig)
    last = max(config.embeddings.recluster_steps(num_steps, num_steps), default=0)
    feature = max(data.vocabularies, key=lambda name: data.vocabularies[name])
    early = seen_ids(data, feature, num_train // 4)
    before_last = seen_ids(data, feature, min(last * config.train.batch_size, num_train))
    metrics = {name: ClickMetrics() for name in GROUPS}
    result.model.eval()
    with torch.no_grad():
        for first in range(0, data.num_examples("test"), _EXAMPLES):
            stop = min(first + _EXAMPLES, data.num_examples("test"))
            batch = data.examples("test", first, stop)
            logits, ids = result.model(batch.dense, batch.ids), batch.ids[feature]
            masks = (torch.ones_like(early[ids]), early[ids], ~early[ids], ~before_last[ids])
            for name, mask in zip(GROUPS, masks, strict=True):
                if bool(mask.any()):
                    metrics[name].add(logits[mask], batch.labels[mask])
    row: Row = {"auc": result.test["auc"], "last_step": last, "steps": result.steps}
    for name, found in metrics.items():
        measured = found.result() if found.num_examples else {"loss": None, "auc": None}
        row |= {f"{name}: examples": found.num_examples, f"{name}: loss": measured["loss"],
                f"{name}: auc": measured["auc"]}  # fmt: skip
    return row


def seen_ids(data: ClickData, feature: str, num_examples: int) -> Bool[Tensor, " num_ids"]:
    """Which ids of a feature occur in the first training examples."""
    return data.count_ids(num_examples)[feature] > 0


def main() -> None:
    """Train the grid and write its page."""
    arguments = grid_parser(__doc__, "cce-drift", "2560").parse_args()
    rows = train_grid(variant_cells(arguments, VARIANTS), one_cell, arguments.work, arguments.part)
    path = Path(arguments.run)
    title = f"Clustering while popular ids change: {path.name}"
    config = load_config(arguments.run, arguments.set)
    body = partial(table, getattr(config.data, "drift", 0))
    write_grid(arguments, f"cce-drift-{path.stem}", title, "benchmarks.cce.drift", rows, body)


def table(drift: float, rows: Sequence[Row]) -> str:
    """The results as Markdown.

    Args:
        drift: Ids per million examples that newly rise to the top.
        rows: What was measured.
    """
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    lines = [
        f"The log is synthetic, and its ids have planted clusters; {drift:,.0f} ids per million "
        "examples rise to the top. Test AUC of the last step, mean (range) of the seeds "
        f"{seeds}, by when the id of the largest feature was first seen in training; the share of "
        "examples is in the head, and in the last column in brackets.\n"
    ]
    for budget in budgets:
        same = [row for row in rows if row["budget"] == budget]
        heads = " | ".join(f"{name} ({_share(same, name):.0%})" for name in GROUPS[:-1])
        lines += [
            f"**{budget:,} parameters per table**\n",
            f"| clusterings | {heads} | {GROUPS[-1]} |",
            "|---|" + "--:|" * len(GROUPS),
        ]
        for variant in dict.fromkeys(row["variant"] for row in same):
            found = [row for row in same if row["variant"] == variant]
            numbers = [mean_and_range(found, f"{name}: auc") for name in GROUPS[:-1]]
            if found[0]["last_step"]:
                share = f"[{_share(found, GROUPS[-1]):.0%}]"
                numbers.append(f"{mean_and_range(found, f'{GROUPS[-1]}: auc')} {share}")
            else:
                numbers.append("")
            lines.append(f"| {variant} | {' | '.join(numbers)} |")
        lines.append("")
    return "\n".join(lines)


def _share(rows: Sequence[Row], name: str) -> float:
    shares: list[float] = [row[f"{name}: examples"] / row["all: examples"] for row in rows]
    return statistics.mean(shares)


if __name__ == "__main__":
    main()
