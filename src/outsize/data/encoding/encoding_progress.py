"""Progress of an encoding: a bar on standard error if it is a terminal, else nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Advance = Callable[[str, int], None]


def say(text: str) -> None:
    """Print a line on standard error."""
    from rich.console import Console

    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def encoding_progress(num_bytes: int, verb: str = "encode") -> Iterator[Advance]:
    """A progress bar, as a function that takes the name of the work and the bytes read."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(verb, total=num_bytes)
        yield lambda text, count: bar.update(task, description=text, advance=count)
