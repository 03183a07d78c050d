"""Reports of the batches of one optimizer step, joined for one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from outsize.errors import ConfigError
from outsize.integrations.sentence_transformers.optimizer_steps import OptimizerSteps
from outsize.negatives import CacheLossReport, Draw, HeldItems


class PendingReports:
    """Reports of the batches since the last commit, without their graphs."""

    def __init__(self) -> None:
        self._reports: list[CacheLossReport] = []
        self._steps: OptimizerSteps | None = None
        self._num_steps = 0

    def add(self, report: CacheLossReport, model: nn.Module) -> None:
        """Keep a report; raises if the optimizer of the model has stepped since the last one."""
        if self._steps is None:
            self._steps = OptimizerSteps(model)
        if self._reports and self._steps.num != self._num_steps:
            raise ConfigError(
                "the optimizer has stepped, but the loss was not committed: pass "
                "callbacks=[loss.callback()] to the Trainer, or call loss.commit() after the "
                "optimizer's step"
            )
        self._num_steps = self._steps.num
        self._reports.append(replace(report, loss=report.loss.detach(), metrics={}))

    def take(self) -> CacheLossReport | None:
        """All reports as one, and forget them; `None` if there are none."""
        found = joined(self._reports) if self._reports else None
        self._reports.clear()
        return found


def joined(reports: Sequence[CacheLossReport]) -> CacheLossReport:
    """One report for all batches that one optimizer step is made of (gradient accumulation)."""
    first = reports[0]
    if len(reports) == 1:
        return first
    draws = [report.draw for report in reports if report.draw is not None]
    drawn = [report.drawn for report in reports if report.drawn is not None]
    return replace(
        first,
        losses=torch.cat([report.losses for report in reports]),
        positives=_joined_items([report.positives for report in reports]),
        positive_embeddings=torch.cat([report.positive_embeddings for report in reports]),
        draw=_joined_draws(draws) if draws else None,
        drawn=torch.cat(drawn) if drawn else None,
    )


def is_finite(report: CacheLossReport) -> bool:
    """Whether all embeddings that a commit would write are finite."""
    total = report.positive_embeddings.sum()
    if report.draw is not None and report.drawn is not None:
        total = total + report.drawn.sum()
    return bool(torch.isfinite(total))


def _joined_items(parts: Sequence[HeldItems]) -> HeldItems:
    return HeldItems(
        torch.cat([part.rows for part in parts]),
        torch.cat([part.keys for part in parts]),
        {name: torch.cat([part.features[name] for part in parts]) for name in parts[0].features},
    )


def _joined_draws(draws: Sequence[Draw]) -> Draw:
    """What a commit needs of several draws: the items, one line per query."""
    return replace(
        draws[0],
        rows=torch.cat([draw.rows for draw in draws]),
        keys=torch.cat([draw.keys for draw in draws]),
        features={
            name: torch.cat([draw.features[name] for draw in draws]) for name in draws[0].features
        },
        embeddings=torch.cat([draw.embeddings for draw in draws]),
        ages=torch.cat([draw.ages for draw in draws]),
        logits=torch.cat([draw.logits for draw in draws]),
        log_partition=torch.cat([draw.log_partition for draw in draws]),
        uniforms=torch.cat([draw.uniforms for draw in draws]),
        mean_embedding=None,
        pair_logits=None,
    )
