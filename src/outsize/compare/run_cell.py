"""One cell, from its configuration to its outcome."""

from __future__ import annotations

import traceback

from outsize.checkpoint import remove_checkpoints
from outsize.compare.grid import QUANTIZED, Cell
from outsize.compare.outcome import Outcome, load_outcome, plain_result, save_outcome
from outsize.compare.quantized import quantized_result
from outsize.errors import BudgetError, OutsizeError
from outsize.files import write_text_atomically
from outsize.training import train
from outsize.training.run_folder import RunFolder


def saved_outcome(cell: Cell) -> Outcome | None:
    """The saved outcome of a cell, after checking that its run had the same configuration."""
    folder = RunFolder(cell.folder)
    if folder.holds_run():
        folder.require_same_run(cell.config)
    return load_outcome(cell)


def run_cell(cell: Cell) -> Outcome:
    """Train a cell, resuming an earlier call that was stopped, and save its outcome.

    Only interruptions are raised. Any other error becomes the outcome of this cell; the traceback
    of an unexpected one is written to `error.txt`.
    """
    try:
        return _train_and_save(cell)
    except OutsizeError as error:
        return Outcome(cell, "failed", _line(error))
    except Exception as error:
        cell.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(cell.folder / "error.txt", traceback.format_exc())
        return Outcome(cell, "failed", f"{type(error).__name__}: {_line(error)}")


def _train_and_save(cell: Cell) -> Outcome:
    folder = RunFolder(cell.folder)
    resume = folder.holds_run()
    try:
        result = train(cell.config, cell.folder, resume=resume, quiet=True)
        is_quantized = cell.method in QUANTIZED
        found = quantized_result(cell, result) if is_quantized else plain_result(result)
        outcome = Outcome(cell, "finished", result=found)
    except BudgetError as error:
        outcome = Outcome(cell, "does not fit", _line(error))
        if not folder.holds_run():
            folder.begin(cell.config)
    save_outcome(outcome)
    remove_checkpoints(folder.checkpoints)  # those of a whole grid would fill the disk
    return outcome


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
