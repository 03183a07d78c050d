"""The log of a run as TensorBoard event files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from outsize.errors import WriteError
from outsize.files import reason_of
from outsize.integrations.line_logs import Line, LineLog, scalars_of

_EVENTS = "events.out.tfevents.*"
_FLUSH_S = 10


class TensorBoardLog(LineLog):
    """Writes the lines of a log as scalars.

    Event files that are there are replaced: a resumed run writes the lines that it keeps again, so
    that each step is there once. Relative time in TensorBoard is the time of training.

    Args:
        folder: The folder of the event files; made if need be.
        lines: Lines that were logged before.
        text: Shown as "config".
    """

    def __init__(self, folder: Path, lines: Iterable[Line] = (), text: str = "") -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        self._folder = folder
        logged = list(lines)
        self._train_s = 0.0
        trained = max((line.get("train_s") or 0.0 for line in logged), default=0.0)
        self._started = time.time() - trained
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in folder.glob(_EVENTS):
                file.unlink()
            # What a TensorBoard that is open has read of the files before is dropped by it.
            self._writer = SummaryWriter(str(folder), purge_step=0, flush_secs=_FLUSH_S)
        except OSError as error:
            raise self._failure(error) from error
        if text:
            indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown: code
            self._writer.add_text("config", indented, 0, walltime=self._started)
        for line in logged:
            self.write(line)

    def write(self, line: Line) -> None:  # noqa: D102
        self._train_s = max(self._train_s, line.get("train_s") or 0.0)
        try:
            for tag, value in scalars_of(line).items():
                self._writer.add_scalar(
                    tag, value, line["step"], walltime=self._started + self._train_s
                )
        except OSError as error:
            raise self._failure(error) from error

    def close(self, failed: bool) -> None:  # noqa: D102
        try:
            self._writer.close()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> WriteError:
        return WriteError(
            f"could not write the TensorBoard log in {self._folder}: {reason_of(error)}; make room "
            "or let this user write there, or set log.tensorboard = false"
        )
