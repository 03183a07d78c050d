"""Progress over cells on standard error: a bar on a terminal, and one line per finished cell."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn

from outsize.compare.grid import Cell
from outsize.compare.outcome import Outcome
from outsize.reporting.progress import ProgressBar
from outsize.training.metric_names import number_of, quality_names


class GridProgress(ProgressBar):
    """Shows which cells run, how many are done, and an estimate of the time left.

    Args:
        total: Total number of cells.
        num_cached: Cells whose outcome was saved by an earlier call.
        console: The console to print to.
    """

    def __init__(self, total: int, num_cached: int, console: Console) -> None:
        super().__init__("cells", total, num_cached, console, TextColumn("{task.fields[left]}"))
        self._running: dict[str, None] = {}
        self._num_cached, self._done = num_cached, num_cached
        self._started = time.perf_counter()

    def start(self, cell: Cell) -> None:
        """A cell has started."""
        self._running[cell.name] = None
        self._show()

    def finish(self, outcome: Outcome) -> None:
        """A cell has ended."""
        self._running.pop(outcome.cell.name)
        self._done += 1
        self._show()
        self.say(f"{self._done}/{self._total}  {outcome.cell.name}  {_facts(outcome)}")

    def _show(self) -> None:
        running = escape(", ".join(self._running))
        self.update(completed=self._done, facts=running, left=self._time_left())

    def _time_left(self) -> str:
        finished = self._done - self._num_cached
        if not finished or self._done == self._total:
            return ""
        elapsed = time.perf_counter() - self._started
        minutes, seconds = divmod(round(elapsed / finished * (self._total - self._done)), 60)
        return f"about {minutes}:{seconds:02} left"


def _facts(outcome: Outcome) -> str:
    if outcome.status != "finished":
        return f"{outcome.status}: {outcome.reason}"
    test, elapsed = outcome.result["test"], outcome.result["elapsed_s"]
    shown = ("loss", *quality_names(test))
    return (
        "  ".join(f"{name} {number_of(value)}" for name, value in test.items() if name in shown)
        + f"  {elapsed:.1f} s"
    )
