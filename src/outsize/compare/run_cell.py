"""One cell, from its configuration to its outcome."""

from __future__ import annotations

import traceback

from outsize.checkpoint import remove_checkpoints
from outsize.compare.grid import Cell
from outsize.compare.outcome import Outcome, keep, kept, plain_result
from outsize.errors import BudgetError, OutsizeError
from outsize.files import write_text_atomically
from outsize.training import train
from outsize.training.run_folder import RunFolder


def kept_outcome(cell: Cell) -> Outcome | None:
    """What is kept of a cell, after making sure that it was the same run."""
    folder = RunFolder(cell.folder)
    if folder.holds_run():
        folder.require_same_run(cell.config)
    return kept(cell)


def run_cell(cell: Cell) -> Outcome:
    """Train a cell, going on where an earlier call was stopped, and keep what comes out.

    Only an interruption is raised; whatever else goes wrong is the outcome of this cell alone, with
    the traceback of a defect in `error.txt`.
    """
    try:
        return _train_and_keep(cell)
    except OutsizeError as error:
        return Outcome(cell, "failed", _line(error))
    except Exception as error:
        cell.folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(cell.folder / "error.txt", traceback.format_exc())
        return Outcome(cell, "failed", f"{type(error).__name__}: {_line(error)}")


def _train_and_keep(cell: Cell) -> Outcome:
    folder = RunFolder(cell.folder)
    resume = folder.holds_run()
    try:
        result = train(cell.config, cell.folder, resume=resume, quiet=True)
        outcome = Outcome(cell, "finished", result=plain_result(result))
    except BudgetError as error:
        outcome = Outcome(cell, "does not fit", _line(error))
        if not resume:
            folder.begin(cell.config)
    keep(outcome)
    remove_checkpoints(folder.checkpoints)  # a grid of them would fill the disk
    return outcome


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
