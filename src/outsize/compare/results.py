"""The results of a comparison: means and ranges over seeds, and the best method per budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outsize.compare.grid import BASELINE, Grid
from outsize.compare.outcome import Outcome
from outsize.training.metric_names import label_of, quality_names


@dataclass(frozen=True)
class Spread:
    """The mean and range of a metric over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Mean, minimum and maximum."""
        return cls(sum(values) / len(values), min(values), max(values))

    def overlaps(self, other: Spread) -> bool:
        """Whether the ranges share a value."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class Point:
    """The results of a method at a budget.

    Attributes:
        budget: The cap on each table; `None` for full tables.
        num_seeds: Number of runs that finished.
        params: Trainable parameters of all tables together.
        total_bytes: Bytes of all tables, including index maps.
        loss: Test log loss at the best validation.
        quality: The quality metric of the test at the best validation, if it is defined: the AUC
            of a click model, accuracy or micro-F1 of a graph's nodes.
    """

    budget: int | None
    num_seeds: int
    params: int
    total_bytes: int
    loss: Spread
    quality: Spread | None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], metric: str = "auc") -> Point:
        """Average the finished cells of a method and budget.

        Args:
            outcomes: The cells.
            metric: The name of the quality metric.
        """
        results = [outcome.result for outcome in outcomes]
        values = [result["test"].get(metric) for result in results]
        return cls(
            budget=outcomes[0].cell.budget,
            num_seeds=len(results),
            params=results[0]["params"],
            total_bytes=results[0]["total_bytes"],
            loss=Spread.of([result["test"]["loss"] for result in results]),
            quality=None if None in values else Spread.of(values),
        )


@dataclass(frozen=True)
class Comparison:
    """The results of a grid.

    Attributes:
        grid: The grid.
        vocabularies: Number of ids of each table.
        outcomes: The outcomes of all cells, in the grid's order.
        full: The results of full tables, if one of their cells finished.
        curves: Method → its points by ascending budget.
        bayes: The best reachable "loss" and quality, as far as the data provides them.
        metric: The name of the quality metric.
    """

    grid: Grid
    vocabularies: Mapping[str, int]
    outcomes: Sequence[Outcome]
    full: Point | None
    curves: Mapping[str, Sequence[Point]]
    bayes: Mapping[str, float]
    metric: str = "auc"

    @classmethod
    def of(
        cls, grid: Grid, vocabularies: Mapping[str, int], outcomes: Sequence[Outcome]
    ) -> Comparison:
        """Group outcomes by method and budget."""
        groups: dict[tuple[str, int | None], list[Outcome]] = {}
        for outcome in outcomes:
            if outcome.status == "finished":
                groups.setdefault((outcome.cell.method, outcome.cell.budget), []).append(outcome)
        metric = _metric_of(outcomes)
        points = {key: Point.of(group, metric) for key, group in groups.items()}
        curves = {
            method: [points[method, b] for b in grid.budgets if (method, b) in points]
            for method in grid.methods
        }
        full = points.get((BASELINE, None))
        bayes = _bayes(outcomes, metric)
        return cls(grid, vocabularies, outcomes, full, curves, bayes, metric)

    def by_seed(self) -> list[Comparison]:
        """The results of each seed alone."""
        seeds = sorted({outcome.cell.seed for outcome in self.outcomes})
        return [
            Comparison.of(
                self.grid, self.vocabularies, [o for o in self.outcomes if o.cell.seed == seed]
            )
            for seed in seeds
        ]

    @property
    def labels(self) -> tuple[str, str]:
        """Display names of the loss and of the quality metric."""
        run = self.grid.run
        return "BCE" if run.task == "click" else run.loss_label, label_of(self.metric)

    def unfinished(self, method: str, budget: int | None) -> Outcome | None:
        """The first cell of a method and budget that did not finish."""
        return next(
            (
                outcome
                for outcome in self.outcomes
                if (outcome.cell.method, outcome.cell.budget) == (method, budget)
                and outcome.status != "finished"
            ),
            None,
        )

    @property
    def failed(self) -> list[Outcome]:
        """The outcomes of the cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.status == "failed"]


@dataclass(frozen=True)
class Best:
    """The best method at a budget, by mean test loss.

    Attributes:
        budget: The budget.
        method: The best method.
        loss: Its loss.
        ties: Methods whose range of losses overlaps with the best method's.
    """

    budget: int
    method: str
    loss: Spread
    ties: tuple[str, ...]


def best_at_each_budget(comparison: Comparison) -> list[Best]:
    """The best method at each budget at which any method finished."""
    found = []
    for budget in comparison.grid.budgets:
        losses = {
            method: point.loss
            for method, curve in comparison.curves.items()
            for point in curve
            if point.budget == budget
        }
        if losses:
            winner = min(losses, key=lambda method: losses[method].mean)
            ties = tuple(
                method
                for method, loss in losses.items()
                if method != winner and loss.overlaps(losses[winner])
            )
            found.append(Best(budget, winner, losses[winner], ties))
    return found


def _metric_of(outcomes: Iterable[Outcome]) -> str:
    """The quality metric of finished cells: the first that they have."""
    tests = [outcome.result["test"] for outcome in outcomes if outcome.status == "finished"]
    return next(iter(quality_names(tests[0])), "auc") if tests else "auc"


def _bayes(outcomes: Iterable[Outcome], metric: str) -> dict[str, float]:
    tests: list[dict[str, Any]] = [o.result["test"] for o in outcomes if o.status == "finished"]
    return {
        name: tests[0][f"bayes_{name}"]
        for name in ("loss", metric)
        if tests and tests[0].get(f"bayes_{name}") is not None
    }
