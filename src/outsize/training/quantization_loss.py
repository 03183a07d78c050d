"""What quantizing a trained model costs: metrics of the held-out splits before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from outsize.data import ClickData, RetrievalData
from outsize.data.click_data import SPLITS, Split
from outsize.metrics import ClickMetrics
from outsize.models import ClickModel, RetrievalModel
from outsize.reporting.progress import counting
from outsize.reporting.quantities import format_bytes
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics, number_of, quality_names
from outsize.training.retrieval_evaluation import (
    Record,
    encode_items,
    rank_relevant,
)
from outsize.training.run_weights import finite

MetricsBySplit = dict[str, Metrics]


@torch.no_grad()
def measure_click_models(
    models: Sequence[ClickModel], data: ClickData, batch_size: int, quiet: bool = True
) -> list[MetricsBySplit]:
    """The metrics of models on the validation and the test split, read once for all of them."""
    found: list[MetricsBySplit] = [{} for _ in models]
    for model in models:
        model.eval()
    held_out: tuple[Split, ...] = SPLITS[1:]
    total = sum(data.num_batches(split, batch_size) for split in held_out)
    with counting("evaluate", total, quiet=quiet) as advance:
        for split in held_out:
            metrics = [ClickMetrics() for _ in models]
            for batch in data.batches(split, batch_size):
                for model, own in zip(models, metrics, strict=True):
                    own.add(model(batch.dense, batch.ids), batch.labels)
                advance(1)
            for own_metrics, own in zip(found, metrics, strict=True):
                own_metrics[split] = finite(own.result())
    return found


@torch.no_grad()
def measure_retrieval_model(
    model: RetrievalModel,
    data: RetrievalData,
    beta: float,
    config: RunConfig,
    record: Record | None = None,
    depth: int = 0,
) -> MetricsBySplit:
    """The metrics of a retrieval model on the validation and the test split.

    The rankings of the test split, of `depth` items, are recorded if asked for.
    """
    assert config.retrieval is not None
    items = encode_items(model, data, config)
    found: MetricsBySplit = {}
    for split in SPLITS[1:]:
        metrics = rank_relevant(
            data.relevant(split),
            data.known(split),
            lambda rows: model.encode_queries(data.queries.take(rows)),
            items,
            torch.tensor(beta),
            config.retrieval.metrics(min_grade=data.min_grade(split)),
            record=record if split == "test" else None,
            depth=depth if split == "test" else 0,
            grades=data.grades(split),
        )
        found[split] = finite(metrics)
    return found


def loss_table(facts: Mapping[str, Any], metrics: Mapping[str, Metrics]) -> list[str]:
    """Bytes and metrics before and after quantization, as lines of text."""
    before = facts["metrics_before"]
    first: Metrics = next(iter({**before, **metrics}.values()), {})
    names = ["loss", *quality_names(first)]
    header = ["weights", "tables", *(["split", *names] if first else [])]
    rows = [header]
    for label, size, measured in (
        ("before", facts["table_bytes_before"], before),
        (facts["method"], facts["table_bytes"], metrics),
    ):
        splits = measured or {"": {}}
        for split, values in splits.items():
            numbers = [split, *(number_of(values.get(name)) for name in names)] if split else []
            rows.append([label, format_bytes(size), *numbers])
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(header))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False))
             for row in rows]  # fmt: skip
    return [line.rstrip() for line in lines]


def unchanged_lines(facts: Mapping[str, Any]) -> list[str]:
    """The tables that stay as they are, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for table in facts["tables"]:
        if table["reason"]:
            by_reason.setdefault(table["reason"], []).append(table["name"])
    return [f"{', '.join(names)}: unchanged ({why})" for why, names in by_reason.items()]
