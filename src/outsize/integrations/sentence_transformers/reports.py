"""Reports of the batches of one optimizer step, joined for one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from outsize.errors import ConfigError
from outsize.integrations.sentence_transformers.optimizer_steps import OptimizerSteps
from outsize.negatives import CacheLossReport, Draw, HeldItems

Record = TypeVar("Record", Draw, HeldItems)


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
        positives=_joined([report.positives for report in reports]),
        positive_embeddings=torch.cat([report.positive_embeddings for report in reports]),
        draw=_joined(draws) if draws else None,
        drawn=torch.cat(drawn) if drawn else None,
    )


def is_finite(report: CacheLossReport) -> bool:
    """Whether all embeddings that a commit would write are finite."""
    total = report.positive_embeddings.sum()
    if report.draw is not None and report.drawn is not None:
        total = total + report.drawn.sum()
    return bool(torch.isfinite(total))


def _joined(parts: Sequence[Record]) -> Record:
    """The lines of several items or draws, without the members that a draw may lack."""

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Mapping):
            return {name: join([each[name] for each in values]) for name in values[0]}
        return torch.cat(list(values))

    names = [field.name for field in fields(parts[0]) if field.default is MISSING]
    return type(parts[0])(**{name: join([getattr(p, name) for p in parts]) for name in names})
