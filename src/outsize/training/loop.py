"""The one training loop: steps, validation, schedules, early stopping, logs, checkpoints.

It reads top-down: `fit` → `steps` → `_train_step` → `_end_step` → `_validate` → `_save`. Whatever
influences the rest of a run is in `LoopState` or in the model and optimizers, and all of it is in
the checkpoint, so a run that is stopped and resumed ends bit-identical to one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.checkpoint import WriteFiles, load_checkpoint, save_checkpoint
from outsize.contracts import RowStore
from outsize.data.click_data import Split
from outsize.errors import CheckpointError, ConfigError, NonFiniteError
from outsize.interrupts import StopRequested, also_stopping_when
from outsize.ranks.collectives import (
    any_rank,
    failing_together,
    gather_values,
    sum_over_ranks,
    world_size,
)
from outsize.row_files import load_rows, rows_writer
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig
from outsize.training.gradient_norm import joint_norm, norm_over_ranks, values_of
from outsize.training.loop_state import (
    LoopState,
    dense_state,
    load_dense_state,
    load_plain_state,
    load_random_state,
    plain_state,
    random_state,
    require_same_batch,
    require_same_data,
)
from outsize.training.metric_names import Metrics
from outsize.training.non_finite import non_finite_error
from outsize.training.row_counts import add_counts, as_metrics
from outsize.training.run_log import log_recorder, read_log_record
from outsize.training.saved_state import fitting, require_fit, require_state
from outsize.training.served_weights import ServedWeights
from outsize.training.tasks import Task


class Loop:
    """Trains one task.

    Args:
        task: Model and data.
        config: The run.
        optimizer: The optimizer of the dense weights.
        callbacks: Told of steps, metrics and messages.
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
        self._base_rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.device = task.device
        self._callbacks = callbacks or Callbacks()
        self._checkpoints = checkpoints
        self._stop_asked = stop_asked
        self._running: Tensor | None = None
        self._log_started = 0.0
        self._num_examples = 0
        self._is_ready = False
        self._in_step = not config.is_asynchronous
        self._saved: tuple[int, str] | None = None
        self._best_saved: int | None = None
        total = task.num_batches() * config.train.epochs
        self.total_steps = min(total, config.train.steps or total)
        self._recluster_steps = config.embeddings.recluster_steps(
            self.total_steps, task.num_batches()
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
        self._log_started = time.perf_counter()
        if self.state.unfinished:
            self._end_step()
        while not self._is_over():
            for batch in self.task.train_batches(self.state.epoch, self.state.batch):
                self._train_step(batch)
                self._end_step()
                yield self.state.step
                if self._is_over():
                    return

    def _is_over(self) -> bool:
        return bool(self.state.stopped)

    def _train_step(self, batch: Any) -> None:
        self._set_rates()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self.task.loss(batch)
        loss.backward()
        if self.task.rows is not None:
            self.task.rows.store.reduce_pending()
        self._clip_and_check(loss)
        for optimizer in self.optimizers:
            optimizer.step()
        self._add_to_running(loss.detach())
        self._num_examples += self.task.num_examples(batch)
        self.state.step += 1
        self.state.batch += 1
        self.state.loss_count += 1
        self._callbacks.advance(self.state.step)

    def _set_rates(self) -> None:
        factor = self.config.schedule.factor(self.state.step, self.total_steps)
        for optimizer, rates in zip(self.optimizers, self._base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def _clip_and_check(self, loss: Tensor) -> None:
        """Clip the joint norm of dense and row gradients; refuse NaN before anything is applied.

        On CUDA the check would stall the device, so NaN is found at the next log line, validation
        or checkpoint; none of the three is written from a run that has seen one.
        """
        dense, *others = [
            [t.grad for group in o.param_groups for t in group["params"] if t.grad is not None]
            for o in self.optimizers
        ]
        rows = others[0] if others else []
        norm = self._norm([values_of(gradient) for gradient in dense], rows)
        limit = self.config.train.clip_norm
        if limit is not None:
            scale = torch.clamp(limit / (norm + 1e-6), max=1.0)
            for gradient in (*dense, *rows):
                gradient.mul_(scale.to(gradient.device))
        if norm.is_cuda:
            self._add_to_running(norm * 0.0)  # 0, or NaN for a non-finite norm
        elif not (math.isfinite(float(norm)) and math.isfinite(loss.item())):
            raise non_finite_error(self.task.trained, self.task.rows, self.state)

    def _norm(self, dense: list[Tensor], rows: list[Tensor]) -> Tensor:
        """What gradients are clipped by and checked with; the same on all ranks where they clip."""
        num_workers = 1 if self._store is None else self._store.num_workers
        clips = self.config.train.clip_norm is not None
        if clips and self._in_step and num_workers > 1:
            return norm_over_ranks(dense, rows, num_workers, self.device)
        return joint_norm(dense, rows)

    def _add_to_running(self, value: Tensor) -> None:
        """Add in float64, where sums of float32 losses do not depend on where they are folded."""
        value = value.double()
        self._running = value if self._running is None else self._running + value

    def _fold_running_loss(self) -> None:
        """Move the loss summed on the device into the state, and raise what a device flagged."""
        if self._running is not None:
            total = float(sum_over_ranks(self._running)) / world_size()
            self._running = None
            if not math.isfinite(total):
                raise NonFiniteError(
                    f"the loss or a gradient became NaN or infinite by step {self.state.step}; "
                    "resume from the last checkpoint with a lower learning rate or train.clip_norm"
                )
            self.state.loss_sum += total
        self.task.raise_if_flawed()

    def _fold_sums(self) -> None:
        """Move the sums of the task into the state; entered by all ranks."""
        for sums in gather_values(self.task.take_sums()):
            for name, (total, count) in sums.items():
                known, steps = self.state.sums.get(name, (0.0, 0))
                self.state.sums[name] = [known + total, steps + count]

    def _log_training(self) -> None:
        if self.state.step % self.config.train.log_every:
            return
        self._fold_running_loss()
        self._fold_sums()
        state = self.state
        now = time.perf_counter()
        line = {
            "step": state.step,
            "split": "train",
            "epoch": state.epoch,
            "loss": state.loss_sum / state.loss_count,
            "learning_rate": self.optimizers[0].param_groups[0]["lr"],
            "examples_per_s": round(self._num_examples / (now - self._log_started), 1),
            **{name: total / count for name, (total, count) in state.sums.items()},
            **self.task.train_metrics(),
            **as_metrics(add_counts(self._store, state.row_counts)),
        }
        self._log_started, self._num_examples = now, 0
        state.loss_sum, state.loss_count, state.row_counts, state.sums = 0.0, 0, {}, {}
        self._callbacks.log(line)

    def _end_step(self) -> None:
        """Run the stages that follow a step, each wholly or not at all; then maybe checkpoint."""
        state = self.state
        try:
            with also_stopping_when(self._stop_asked):
                state.go_through(
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
        self._fold_running_loss()
        paused = time.perf_counter()
        state = self.state
        metrics = self._evaluate("validation")
        badness = self.task.badness(metrics)
        is_best = not state.best or badness < self.task.badness(state.best)
        test = self._evaluate("test") if is_best else {}
        # Nothing is logged before both are known: if stopped in between, the resumed run does both.
        self._callbacks.log({"step": state.step, "split": "validation", **metrics})
        state.epoch_best = min(state.epoch_best, badness)
        if is_best:
            state.best, state.test = {"step": state.step, **metrics}, test
            self._callbacks.log({"step": state.step, "split": "test", **test})
        self._log_started += time.perf_counter() - paused  # not counted as training time

    def _evaluate(self, split: Split) -> Metrics:
        metrics = self.task.evaluate(split)
        for name, value in metrics.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteError(
                    f"step {self.state.step}: {name} of the {split} split is NaN or infinite, and "
                    "so is what the model predicts: lower the learning rate, set train.clip_norm, "
                    "or look at the inputs"
                )
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
        if self._reclusters and self._is_best_unsaved:
            self._save()

    @property
    def _reclusters(self) -> bool:
        return not self.state.stopped and self.state.step in self._recluster_steps

    def _refill_if_due(self) -> None:
        """Re-encode what was encoded by tables that have been reclustered."""
        if self._reclusters:
            self.task.begin()

    def _recluster_if_due(self) -> None:
        if not self._reclusters:
            return
        paused = time.perf_counter()
        for table, report in self.task.recluster(self.state.step, self.optimizers[0]).items():
            line = {"step": self.state.step, "split": "recluster", "table": table}
            self._callbacks.log({**line, **report.as_metrics()})
        self._log_started += time.perf_counter() - paused

    def _end_epoch(self) -> None:
        state = self.state
        if self.config.train.early_stop and state.epoch_best > state.previous_best:
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
            writers.append(log_recorder(logged))

        def write_more(folder: Path) -> Mapping[str, Mapping[str, Any]]:
            return {name: facts for write in writers for name, facts in write(folder).items()}

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
            self._require_fit(state, is_older=logged is None)
        of_torch = (ValueError, KeyError, TypeError, RuntimeError)
        with failing_together(CheckpointError), fitting(checkpoint, *of_torch):
            self._load_state(state)
        if self._store is not None:
            load_rows(self._store, checkpoint)
        self.task.load_files(checkpoint)
        self._is_ready = True
        self._saved = (self.state.step, self.state.unfinished)
        self._best_saved = self.state.step if self._is_best else None
        return logged

    def state_dict(self) -> dict[str, Any]:
        """Everything the rest of the run depends on, except the rows of a store."""
        self._fold_running_loss()
        self._fold_sums()
        self.state.row_counts = add_counts(self._store, self.state.row_counts)
        return {
            "num_ranks": world_size(),
            "batch_size": self.config.train.batch_size,
            "data": self.task.fingerprint,
            "loop": asdict(self.state),
            "model": dense_state(self.task.trained, self._store),
            "optimizers": [plain_state(o) for o in self.optimizers],
            "random": random_state(),
        }

    def _require_fit(self, state: Mapping[str, Any], is_older: bool) -> None:
        require_state(state, self.task.judge, is_older)
        require_same_batch(state["num_ranks"], state["batch_size"], self.config.train.batch_size)
        require_same_data(state["data"], self.task.fingerprint)
        if state["loop"]["step"] > self.total_steps:
            raise ConfigError(
                f"this run has taken {state['loop']['step']:,} steps, and train.epochs and "
                f"train.steps ask for {self.total_steps:,}: ask for more, or start a new run with "
                "--out"
            )
        weights = dense_state(self.task.trained, self._store)
        require_fit(state, self.task.num_batches(), weights, self.optimizers)

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.state = LoopState.from_dict(state["loop"])
        if self.state.stopped == "finished" and self.state.step < self.total_steps:
            self.state.stopped = ""  # the run is extended
        load_dense_state(self.task.trained, self._store, state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            load_plain_state(optimizer, saved)
        load_random_state(state["random"])

    @property
    def _store(self) -> RowStore | None:
        return None if self.task.rows is None else self.task.rows.store
