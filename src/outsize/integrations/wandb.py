"""The log of a run as a run of Weights & Biases, online or offline."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from outsize.errors import DataError, WriteError, one_line
from outsize.files import write_text_atomically
from outsize.integrations.line_logs import Line, LineLog, scalars_of
from outsize.json_files import SchemaError, Whole, read_json

_RECORD = "wandb-run.json"
_SCHEMA = {"id": str, "step": Whole(), "logged": [str]}


class WandbLog(LineLog):
    """Logs the lines of a run to one run of Weights & Biases.

    The id of that run, and how far it got, are kept in `wandb-run.json`. A resumed run continues
    it, and what was logged before is not logged again. Environment variables of Weights & Biases,
    such as `WANDB_MODE=offline`, hold.

    Args:
        folder: The run folder; files of Weights & Biases go to its folder `wandb`.
        project: The project.
        config: The configuration to show.
        lines: Lines that were logged before; those that this run lacks are logged now.
    """

    def __init__(
        self, folder: Path, project: str, config: Mapping[str, Any], lines: Iterable[Line] = ()
    ) -> None:
        import wandb  # slow to import, and an extra

        self._record = folder / _RECORD
        found = self._read()
        self._id, self._step, self._logged = found["id"], found["step"], set(found["logged"])
        try:
            self._run = wandb.init(
                project=project,
                id=self._id,
                name=folder.resolve().name,
                dir=str(folder),
                config=dict(config),
                resume="allow",
                # Standard output is ours: with --json it is one object.
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            raise WriteError(
                f"Weights & Biases did not start: {one_line(error, 200)}; set WANDB_MODE=offline "
                "to log without a server, or leave log.wandb out"
            ) from error
        self._run.define_metric("*", step_metric="step")
        self._write_record()
        for line in lines:
            self.write(line)

    @property
    def run_id(self) -> str:
        """The id of the run there."""
        return str(self._id)

    def write(self, line: Line) -> None:
        """Log a line, unless it was logged before the run was resumed."""
        step, kind = line["step"], "/".join(str(line.get(name)) for name in ("split", "table"))
        if step < self._step or (step == self._step and kind in self._logged):
            return
        if step > self._step:
            self._step, self._logged = step, set()
        self._logged.add(kind)
        values = scalars_of(line)
        if line.get("train_s") is not None:
            values["train_s"] = line["train_s"]
        self._run.log({"step": step, **values})
        self._write_record()

    def close(self, failed: bool) -> None:  # noqa: D102
        self._run.finish(exit_code=int(failed))

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_json(self._record, _SCHEMA)
        except FileNotFoundError:
            return {"id": secrets.token_hex(4), "step": 0, "logged": []}
        except (OSError, SchemaError) as error:
            raise DataError(
                f"{self._record} cannot be read: {one_line(error, 200)}; delete it to go on in a "
                "new run of Weights & Biases"
            ) from None
        return found

    def _write_record(self) -> None:
        facts = {"id": self._id, "step": self._step, "logged": sorted(self._logged)}
        write_text_atomically(self._record, json.dumps(facts))
