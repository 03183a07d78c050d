"""Progress on standard error: a bar with time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outsize.training.metric_names import in_words


class TrainingProgress:
    """Progress of one run.

    Args:
        total_steps: Length of the run.
        first_step: Where it starts or resumes.
        quiet: Show nothing.
    """

    def __init__(self, total_steps: int, first_step: int = 0, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._total = total_steps
        self._bar = Progress(
            TextColumn("[bold]train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=total_steps, completed=first_step, facts="")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, step: int) -> None:
        """Advance to a step."""
        self._bar.update(self._task, completed=step)

    def log(self, line: Mapping[str, Any]) -> None:
        """Show training lines in the bar, evaluations as lines of their own."""
        if line["split"] == "train":
            facts = f"loss {line['loss']:.4f} · {line['examples_per_s']:,.0f} ex/s"
            self._bar.update(self._task, facts=facts)
            return
        if line["split"] == "rows":
            return
        if line["split"] == "recluster":
            left = line["mse"] / line["variance"] if line["variance"] else 0.0
            self.say(
                f"step {line['step']:>7,}/{self._total:,}  recluster   {line['table']}: "
                f"{line['num_clusters']:,} clusters leave {left:.1%} of the variance, "
                f"{line['num_empty']:,} empty, {line['seconds']:.1f} s"
            )
            return
        self.say(f"step {line['step']:>7,}/{self._total:,}  {line['split']:<10}  {in_words(line)}")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)
