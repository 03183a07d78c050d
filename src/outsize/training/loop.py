"""The one training loop: steps, validation, schedules, early stopping, logs, checkpoints.

It reads top-down: `fit` → `steps` → `_train_step` → `_end_step` → `_validate` → `_save`. Whatever
influences the rest of a run is in `LoopState` or in the model and optimizers, and all of it is in
the checkpoint, so a run that is stopped and resumed ends bit-identical to one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from outsize.checkpoint import load_checkpoint, save_checkpoint
from outsize.contracts import RowStore
from outsize.data.click_data import Split
from outsize.data.prefetch import one_ahead
from outsize.errors import CheckpointError, ConfigError
from outsize.interrupts import StopRequested, also_stopping_when
from outsize.ranks.collectives import any_rank
from outsize.ranks.failures import failing_together
from outsize.stores.row_files import load_rows, rows_writer
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig
from outsize.training.graphed_step import build_step
from outsize.training.loop_state import (
    LoopState,
    dense_state,
    load_run_state,
    require_same_run,
    run_state,
)
from outsize.training.metric_names import Metrics
from outsize.training.non_finite import require_finite_metrics
from outsize.training.recluster_schedule import ReclusterSchedule
from outsize.training.row_counts import as_metrics
from outsize.training.run_log import log_recorder, read_log_record
from outsize.training.saved_state import fitting, require_fit, require_state
from outsize.training.schedule import LearningRates
from outsize.training.served_weights import ServedWeights
from outsize.training.tasks import Task
from outsize.training.training_sums import TrainingSums
from outsize.verified_folders import WriteFiles


class Loop:
    """Trains one task.

    Args:
        task: Model and data.
        config: The run.
        optimizer: The optimizer of the dense weights.
        callbacks: Called with steps, metrics and messages.
        checkpoints: Folder for checkpoints; `None` saves none.
        stop_asked: Polled after each step; when true, the run is saved and stops. So it is when
            work that follows a step raises `StopRequested`; the rest of it is done on resuming.
    """

    def __init__(
        self,
        task: Task[Any],
        config: RunConfig,
        optimizer: Optimizer,
        callbacks: Callbacks | None = None,
        checkpoints: Path | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task = task
        self.config = config
        self.state = LoopState()
        self.optimizers: list[Optimizer] = [optimizer, *([task.rows] if task.rows else [])]
        self._rates = LearningRates(self.optimizers)
        self.device = task.device
        self._callbacks = callbacks or Callbacks()
        self._checkpoints = checkpoints
        self._stop_asked = stop_asked
        self._sums = TrainingSums(task)
        self._step = build_step(task, config, self.optimizers, self._sums, self._callbacks.say)
        self._is_ready = False
        self._in_step = not config.is_asynchronous
        self._saved: tuple[int, str] | None = None
        self._best_saved: int | None = None
        total = task.num_batches() * config.train.epochs
        self.total_steps = min(total, config.train.steps or total)
        self._reclustering = ReclusterSchedule(
            task, config, optimizer, self.total_steps, self._callbacks.log
        )

    def fit(self) -> None:
        """Train until the epochs or steps are done, or early stopping or the caller ends it."""
        for _ in self.steps():
            pass
        self._save()
        if self.state.row_counts:  # what the last flush has sent
            line = {"step": self.state.step, "split": "rows"}
            self._callbacks.log({**line, **as_metrics(self.state.row_counts)})

    def begin(self) -> None:
        """Prepare the first step, unless a checkpoint was loaded; `steps` calls this."""
        if not self._is_ready:
            self.task.begin()
        self._is_ready = True

    def steps(self) -> Iterator[int]:
        """Train step by step; yields the number of steps taken."""
        self.task.model.train()
        self.begin()
        self._sums.begin()
        if self.state.unfinished:
            self._end_step()
        while not self._is_over():
            for batch in self._batches():
                self._train_step(batch)
                self._end_step()
                yield self.state.step
                if self._is_over():
                    return

    def _batches(self) -> Iterator[Any]:
        """The rest of the epoch; each batch is prefetched one step ahead if the store reads so."""
        batches = self.task.train_batches(self.state.epoch, self.state.batch)
        if self._store is None or not self._store.reads_ahead:
            return batches
        left = self.total_steps - self.state.step
        return one_ahead(islice(batches, left), self.task.prefetch)

    def _is_over(self) -> bool:
        return bool(self.state.stopped)

    def _train_step(self, batch: Any) -> None:
        self._rates.scale(self.config.schedule.factor(self.state.step, self.total_steps))
        self._step.take(batch, self.state)
        self._sums.count_step(self.task.num_examples(batch))
        self.state.step += 1
        self.state.batch += 1
        self.state.loss_count += 1
        self._callbacks.advance(self.state.step)

    def _log_training(self) -> None:
        if self.state.step % self.config.train.log_every == 0:
            self._callbacks.log(self._sums.take_line(self.state, self._rates.by_name()))

    def _end_step(self) -> None:
        """Run the stages that follow a step, each wholly or not at all; then maybe checkpoint."""
        state = self.state
        try:
            with also_stopping_when(self._stop_asked):
                state.run_stages(
                    {
                        "commit": self.task.finish_commit if state.unfinished else self.task.commit,
                        "log": self._log_training,
                        "validate": self._validate_if_due,
                        "keep": self._keep_before_recluster,
                        "recluster": self._recluster_if_due,
                        "refill": self._refill_if_due,
                    }
                )
            is_asked = not state.stopped and self._synchronizes()
            is_asked = is_asked and any_rank(self._stop_asked(), self.device)
        except StopRequested:
            is_asked = True
        if is_asked:
            self._save()
            raise KeyboardInterrupt
        is_due = not state.stopped and state.step % self.config.checkpoint.every == 0
        if is_due or self._is_best_unsaved:
            self._save()

    def _validate_if_due(self) -> None:
        """Validate, and end an epoch or the run."""
        state, train = self.state, self.config.train
        out_of_steps = state.step >= self.total_steps
        end_of_epoch = state.batch >= self.task.num_batches()
        every = train.validate_every
        if end_of_epoch or out_of_steps or (every is not None and state.step % every == 0):
            self._validate()
        if end_of_epoch:
            self._end_epoch()
        if out_of_steps and not state.stopped:
            state.stopped = "finished"

    def _synchronizes(self) -> bool:
        """Whether ranks synchronize after this step; in asynchronous training they rarely do."""
        return self._in_step or self.state.step % self.config.train.log_every == 0

    def _flush(self) -> None:
        """Apply updates that are held back, so that what is measured is what is saved."""
        if self._store is not None:
            self._store.flush()
        if isinstance(self.optimizers[0], ServedWeights):
            self.optimizers[0].flush()

    def _validate(self) -> None:
        self._flush()
        state = self.state
        self._sums.fold_losses(state)
        with self._sums.paused():
            metrics = self._evaluate("validation")
            badness = self.task.badness(metrics)
            is_best = not state.best or badness < self.task.badness(state.best)
            test = self._evaluate("test") if is_best else {}
        # Nothing is logged before both are known: if stopped in between, the resumed run does both.
        epochs = state.epoch + state.batch / self.task.num_batches()
        when = {"train_s": round(self._sums.train_s, 3), "epochs": epochs}
        line = {"step": state.step, "split": "validation", **when, **metrics}
        self._callbacks.log({**line, **self.task.evaluation_details("validation")})
        state.epoch_best = min(state.epoch_best, badness)
        if is_best:
            state.best, state.test = {"step": state.step, **metrics}, test
            line = {"step": state.step, "split": "test", **when, **test}
            self._callbacks.log({**line, **self.task.evaluation_details("test")})

    def _evaluate(self, split: Split) -> Metrics:
        metrics = self.task.evaluate(split)
        require_finite_metrics(metrics, split, self.state.step)
        return metrics

    @property
    def _is_best_unsaved(self) -> bool:
        """Whether this step has the best validation so far, and its weights are not saved yet."""
        return self._is_best and self.config.checkpoint.best and self._best_saved != self.state.step

    @property
    def _is_best(self) -> bool:
        return self.state.best.get("step") == self.state.step

    def _keep_before_recluster(self) -> None:
        """Save the best weights now, if the next stage would replace them."""
        if self._reclustering.is_due(self.state) and self._is_best_unsaved:
            self._save()

    def _refill_if_due(self) -> None:
        """Re-encode what was encoded by tables that have been reclustered."""
        if self._reclustering.is_due(self.state):
            self.task.begin()

    def _recluster_if_due(self) -> None:
        if not self._reclustering.is_due(self.state):
            return
        with self._sums.paused():
            reports = self._reclustering.run(self.state)
            self._step.renew()
        for table, report in reports.items():
            line = {"step": self.state.step, "split": "recluster", "table": table}
            self._callbacks.log({**line, **report.as_metrics()})

    def _end_epoch(self) -> None:
        state = self.state
        is_worse = state.epoch_best > state.previous_best
        may_stop = self.config.train.early_stop and not self._reclustering.has_probes_left(state)
        if may_stop and is_worse:
            state.stopped = "early"
            judge, sign = self.task.judge, -1 if self.task.higher_is_better else 1
            self._callbacks.say(
                f"stopped early: epoch {state.epoch + 1} got no better than {judge} "
                f"{sign * state.epoch_best:.5f}, the one before reached "
                f"{sign * state.previous_best:.5f}"
            )
        state.previous_best, state.epoch_best = state.epoch_best, math.inf
        state.epoch += 1
        state.batch = 0

    def _save(self) -> None:
        place = (self.state.step, self.state.unfinished)
        if self._saved == place:
            return
        self._flush()
        again = self._saved is not None and self._saved[0] == place[0] and self._saved != place
        state = self.state_dict()
        if self._checkpoints is None:
            return
        writers: list[WriteFiles] = [self.task.write_files]
        if self._store is not None:
            writers.append(rows_writer(self._store))
        if (logged := self._callbacks.log_facts()) is not None:
            writers.append(log_recorder({**logged, "train_s": self._sums.train_s}))

        def write_more(folder: Path) -> Mapping[str, Mapping[str, Any]]:
            return {name: facts for write in writers for name, facts in write(folder).items()}

        with self._sums.paused():
            save_checkpoint(
                self._checkpoints,
                self.state.step,
                state,
                self.config.checkpoint.keep,
                write_more,
                again,
                protected_step=self.state.best.get("step") if self.config.checkpoint.best else None,
            )
        self._saved = place
        self._best_saved = self.state.step if self._is_best else self._best_saved

    def load(self, checkpoint: Path) -> dict[str, Any] | None:
        """Continue from a checkpoint; entered by all ranks, however many wrote it.

        Returns:
            What the checkpoint recorded of the log, if it did.
        """
        with failing_together(CheckpointError), fitting(checkpoint):
            state, logged = load_checkpoint(checkpoint), read_log_record(checkpoint)
            require_state(state, self.task.judge, is_older=logged is None)
            require_same_run(state, self.task, self.config.train.batch_size)
            self._require_steps_left(state["loop"]["step"])
            weights = dense_state(self.task.trained, self._store)
            counts_rows = self._store is not None and self._store.take_counts() is not None
            require_fit(
                state, self.task.num_batches(), weights, self.optimizers, counts_rows=counts_rows
            )
        of_torch = (ValueError, KeyError, TypeError, RuntimeError)
        with failing_together(CheckpointError), fitting(checkpoint, *of_torch):
            self.state = load_run_state(state, self.task, self.optimizers)
        if self.state.stopped == "finished" and self.state.step < self.total_steps:
            self.state.stopped = ""  # the run is extended
        if self._store is not None:
            load_rows(self._store, checkpoint)
        self.task.load_files(checkpoint)
        self._sums.begin(None if logged is None else logged.pop("train_s", None))
        self._is_ready = True
        self._saved = (self.state.step, self.state.unfinished)
        self._best_saved = self.state.step if self._is_best else None
        return logged

    def state_dict(self) -> dict[str, Any]:
        """Everything the rest of the run depends on, except the rows of a store."""
        self._sums.fold(self.state)
        return run_state(self.state, self.task, self.optimizers, self.config.train.batch_size)

    def _require_steps_left(self, taken: int) -> None:
        if taken > self.total_steps:
            raise ConfigError(
                f"this run has taken {taken:,} steps, and train.epochs and train.steps ask for "
                f"{self.total_steps:,}: ask for more, or start a new run with --out"
            )

    @property
    def _store(self) -> RowStore | None:
        return None if self.task.rows is None else self.task.rows.store
