"""Progress on standard error: a bar on a terminal, and plain lines everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

Bar = TypeVar("Bar", bound="ProgressBar")


class ProgressBar:
    """A bar with a count, facts and the elapsed time, and lines that are printed above it.

    Args:
        name: What is counted.
        total: The last count.
        done: The first count.
        console: The console to print to.
        columns: Columns of rich after the elapsed time.
    """

    def __init__(
        self, name: str, total: int, done: int, console: Console, *columns: ProgressColumn
    ) -> None:
        self._console = console
        self._total = total
        self._bar = Progress(
            TextColumn(f"[bold]{name}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            *columns,
            console=console,
            disable=console.quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=total, completed=done, facts="", left="")

    def __enter__(self: Bar) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, done: int) -> None:
        """Show a count."""
        self.update(completed=done)

    def update(self, **fields: Any) -> None:
        """Show what has changed: `completed`, or the fields of columns, such as `facts`."""
        self._bar.update(self._task, **fields)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        print_line(self._console, text)


@contextmanager
def counting(name: str, total: int, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, as a function of what was done since the last call."""
    done = 0
    with ProgressBar(name, total, 0, Console(stderr=True, quiet=quiet)) as bar:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.advance(done)

        yield advance


def print_line(console: Console, text: str) -> None:
    """Print text as it is, without colours, markup or line breaks of rich's own."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
