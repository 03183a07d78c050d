"""Progress of a run: a bar with time left on a terminal, lines elsewhere; evaluations as lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import TextColumn, TimeRemainingColumn

from outsize.reporting.progress import ProgressBar
from outsize.reporting.quantities import format_bytes
from outsize.training.metric_names import in_words


class TrainingProgress(ProgressBar):
    """Progress of one run.

    Args:
        total_steps: Length of the run.
        first_step: Where it starts or resumes.
        quiet: Show nothing.
    """

    def __init__(self, total_steps: int, first_step: int = 0, quiet: bool = False) -> None:
        console = Console(stderr=True, quiet=quiet)
        left = (TextColumn("left"), TimeRemainingColumn())
        super().__init__("train", total_steps, first_step, console, *left)

    def log(self, line: Mapping[str, Any]) -> None:
        """Show training lines in the bar, or as lines where there is none; evaluations as lines."""
        if line["split"] == "train":
            facts = f"loss {line['loss']:.4f} · {line['examples_per_s']:,.0f} ex/s"
            self.update(facts=facts)
            if not self._console.is_terminal:  # there is no bar
                self.say(f"step {line['step']:>7,}/{self._total:,}  {line['split']:<10}  {facts}")
            return
        if line["split"] == "rows":
            return
        if "skipped" in line:
            step = f"step {line['step']:>7,}/{self._total:,}"
            self.say(f"{step}  probe       skipped: {line['skipped']}")
            return
        if line["split"] == "probe":
            self.say(
                f"step {line['step']:>7,}/{self._total:,}  probe       {line['blocks']} blocks, "
                f"{line['visits']:,} examples, {format_bytes(line['extra_bytes'])}, "
                f"{line['seconds']:.1f} s"
                + ("" if line["kept"] else ", not used: most of what it gained is noise")
            )
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
