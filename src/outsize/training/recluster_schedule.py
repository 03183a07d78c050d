"""When the tables of a run are reclustered, and how: after a probe, or by their own vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer

from outsize.contracts import ReclusterReport
from outsize.training.config import RunConfig
from outsize.training.loop_state import LoopState
from outsize.training.memory_needs import state_numbers
from outsize.training.probing import recluster_probed, skipped_probe, tables_of
from outsize.training.tasks import Task


class ReclusterSchedule:
    """Reclusters the tables of a task at the steps that its run asks for.

    Args:
        task: Model and data.
        config: The run.
        optimizer: The optimizer of the tables.
        total_steps: Steps of the run.
        log: Takes a line of metrics for each probe.

    Attributes:
        steps: The steps after which tables are reclustered.
    """

    def __init__(
        self,
        task: Task[Any],
        config: RunConfig,
        optimizer: Optimizer,
        total_steps: int,
        log: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._task = task
        self._config = config
        self._optimizer = optimizer
        self._total_steps = total_steps
        self._log = log
        # Within its budget, every table may be full: there is nothing to probe then.
        self._probe = config.embeddings.probe if tables_of(task) else None
        self.steps = config.embeddings.recluster_steps(total_steps, task.num_batches())

    def is_due(self, state: LoopState) -> bool:
        """Whether tables are reclustered after the current step."""
        return not state.stopped and state.step in self.steps

    def has_probes_left(self, state: LoopState) -> bool:
        """Whether probes are to come: most of the progress is made by them, not between them."""
        probed = self._probe is not None and not state.rejected_probe
        return probed and state.step <= max(self.steps, default=0)

    def run(self, state: LoopState) -> dict[str, ReclusterReport]:
        """Recluster, after a probe if the run asks for one and none was rejected before."""
        step, embeddings = state.step, self._config.embeddings
        if self._probe is None:
            return self._task.recluster(step, self._optimizer)
        if state.rejected_probe:
            plain = self._task.recluster(step, self._optimizer)
            line = {"step": step, "split": "probe", **skipped_probe(state.rejected_probe)}
            self._log(line)
            return plain
        reports, report = recluster_probed(
            self._task,
            self._probe,
            step,
            self._optimizer,
            helper=self._probe.helper or step < max(self.steps),
            weighted=embeddings.weighs_ids,
            state_numbers=state_numbers(self._config),
            run_visits=self._visits_per_probe(step),
            reads_again=self._total_steps > self._task.num_batches(),
        )
        state.rejected_probe = 0 if report.kept else step
        self._log({"step": step, "split": "probe", **report.as_metrics()})
        return reports

    def _visits_per_probe(self, step: int) -> float:
        """Visits of the examples read so far that make all probes together as long as the run."""
        num_seen = min(step, self._task.num_batches())
        return self._total_steps / (len(self.steps) * num_seen)
