"""The outcome of a cell, and the file it is saved in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from outsize.compare.grid import Cell
from outsize.errors import DataError
from outsize.files import reason_of, write_text_atomically
from outsize.json_files import Each, OneOf, SchemaError, Whole, Word, check, read_json
from outsize.spec import MEMORY_KINDS
from outsize.training import RunResult

Status = Literal["finished", "does not fit", "failed"]
_SCHEMA = {"status": Word(*get_args(Status)), "reason": str, "result": Each(object)}
_METRICS = Each(OneOf(None, float))
_RESULT = {
    "steps": Whole(),
    "stopped": str,
    "validation": _METRICS,
    "test": _METRICS,
    "params": Whole(),
    "bytes": Each(Whole()),
    "total_bytes": Whole(),
    "elapsed_s": float,
}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        cell: The cell.
        status: "finished"; "does not fit" if the method cannot be made small enough for the budget;
            or "failed".
        reason: One line, if the cell did not finish.
        result: The result of `plain_result`, if it did.
    """

    cell: Cell
    status: Status
    reason: str = ""
    result: dict[str, Any] = field(default_factory=dict)


def plain_result(result: RunResult) -> dict[str, Any]:
    """Metrics, sizes and time of a run; a metric that does not exist is `None`."""
    return {
        "steps": result.steps,
        "stopped": result.stopped,
        "validation": result.best,
        "test": result.test,
        "params": result.memory.num_parameters,
        "bytes": {kind: result.memory.bytes_of(kind) for kind in MEMORY_KINDS},
        "total_bytes": result.memory.total_bytes,
        "elapsed_s": round(result.elapsed_s, 3),
    }


def save_outcome(outcome: Outcome) -> None:
    """Write `result.json` into the folder of a cell, atomically."""
    content = {"status": outcome.status, "reason": outcome.reason, "result": outcome.result}
    write_text_atomically(
        outcome.cell.folder / "result.json", json.dumps(content, indent=1, allow_nan=False) + "\n"
    )


def load_outcome(cell: Cell) -> Outcome | None:
    """The outcome that an earlier call saved for a cell, or `None`."""
    path = cell.folder / "result.json"
    try:
        content = read_json(path, _SCHEMA)
        if content["status"] == "finished":
            check(content["result"], _RESULT, "result")
            of_task = {"auc": object} if cell.config.task == "click" else {}
            check(content["result"]["test"], {"loss": float, **of_task}, "result.test")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except SchemaError as error:
        raise DataError(
            f"{path} is damaged: delete it, and its cell is trained again ({error})"
        ) from None
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {reason_of(error)}; make it a file that this user may read, "
            "or choose another folder with --out"
        ) from error
    return Outcome(cell, content["status"], content["reason"], content["result"])
