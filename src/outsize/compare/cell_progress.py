"""Progress over cells on standard error: a bar on a terminal, and one line per finished cell."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outsize.compare.grid import Cell
from outsize.compare.outcome import Outcome
from outsize.training.metric_names import number_of


class GridProgress:
    """Shows which cells run, how many are done, and an estimate of the time left.

    Args:
        total: Total number of cells.
        num_cached: Cells whose outcome was saved by an earlier call.
        console: The console to print to.
    """

    def __init__(self, total: int, num_cached: int, console: Console) -> None:
        self._console = console
        self._running: dict[str, None] = {}
        self._total, self._num_cached, self._done = total, num_cached, num_cached
        self._started = time.perf_counter()
        self._bar = Progress(
            TextColumn("[bold]cells"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=num_cached, left="")

    def __enter__(self) -> GridProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def start(self, cell: Cell) -> None:
        """A cell has started."""
        self._running[cell.name] = None
        self._update()

    def finish(self, outcome: Outcome) -> None:
        """A cell has ended."""
        self._running.pop(outcome.cell.name)
        self._done += 1
        self._update()
        self._console.print(
            f"{self._done}/{self._total}  {outcome.cell.name}  {_facts(outcome)}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _update(self) -> None:
        running = escape(", ".join(self._running))
        left = self._time_left()
        self._bar.update(self._task, completed=self._done, description=running, left=left)

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
    return (
        "  ".join(
            f"{name} {number_of(value)}" for name, value in test.items() if name in ("loss", "auc")
        )
        + f"  {elapsed:.1f} s"
    )
