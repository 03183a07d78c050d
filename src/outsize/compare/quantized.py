"""Cells that train full tables first and quantize them afterwards, to the budget of the cell.

They need the full tables in training, as no other method does, and are marked so wherever they are
shown. "pq" measures the quantized tables as they are; "pq-tuned" trains the model on with them, the
pointers fixed, for half as long as the run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outsize.compare.grid import TUNED, Cell
from outsize.compare.outcome import plain_result
from outsize.contracts import EmbeddingTable
from outsize.nn.rows import PQ, table_from_rows
from outsize.spec import Budget
from outsize.tables import FullTable
from outsize.training import RunConfig, RunResult
from outsize.training.build import build_optimizer
from outsize.training.loop import Loop
from outsize.training.metric_names import Metrics
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import load_click_model
from outsize.training.tasks import ClickTask


def quantized_result(cell: Cell, trained: RunResult) -> dict[str, Any]:
    """The result of a cell whose run with full tables has ended; see `plain_result`.

    The weights of its best validation are quantized. Raises a `BudgetError` if a table cannot be
    made small enough.
    """
    assert cell.budget is not None
    task = ClickTask(cell.config)
    best, _, _ = load_click_model(RunFolder(cell.folder), cell.config)
    task.model.load_state_dict(best.state_dict())
    _quantize(task, _budget(cell), cell.seed)
    validation, test = _measured(cell, task)
    use = task.embeddings.memory_use()
    return plain_result(replace(trained, best=validation, test=test, memory=use))


def _budget(cell: Cell) -> Budget:
    return Budget(None, cell.budget) if cell.unit == "bytes" else Budget(cell.budget, None)


def _quantize(task: ClickTask, budget: Budget, seed: int) -> None:
    """Replace the tables that exceed a budget."""
    tables = task.embeddings.tables
    assert tables is not None
    for name, table in list(tables.items()):
        assert isinstance(table, EmbeddingTable)
        use = table.memory_use()
        if budget.allows(use.num_parameters, use.total_bytes) or not isinstance(table, FullTable):
            continue
        tables[name] = table_from_rows(PQ, table.spec, table.weight, budget, seed=seed)


def _measured(cell: Cell, task: ClickTask) -> tuple[Metrics, Metrics]:
    """Metrics of validation and test, after training on if the method says so."""
    if cell.method != TUNED:
        task.model.eval()
        return task.evaluate("validation"), task.evaluate("test")
    config = _half_as_long(cell.config)
    loop = Loop(task, config, build_optimizer(config, task.trained))
    loop.fit()
    return loop.state.best, loop.state.test


def _half_as_long(config: RunConfig) -> RunConfig:
    train = config.train
    steps = None if train.steps is None else max(1, train.steps // 2)
    return replace(config, train=replace(train, epochs=max(1, train.epochs // 2), steps=steps))
