"""What the rows of a run cost between ranks and on each, by simulation of sampled steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outsize.plan.machine import Pace
from outsize.plan.many_ranks import busiest_owner, extrapolate, lasting_hit_rate, rule_error
from outsize.plan.replicas import RowCost, replicas
from outsize.plan.rowless import RecordedConfig
from outsize.plan.step_time import busiest_bytes
from outsize.plan.traffic import MOST_RANKS, Sample, Traffic
from outsize.spec import TableSpec
from outsize.training.available_memory import available_bytes
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig
from outsize.training.tasks import TASKS, RetrievalTask, Task

_FEW_STEPS = 10
_RANK_STEPS = 4000  # of all ranks together
_RANK_STEPS_OF_MANY = 1600  # if several numbers of ranks are simulated
_MOST_SCORES, _LEAST_RANK_STEPS = 10**10, 80  # of queries by items, if a model is trained meanwhile
_OWN_STEPS, _OWN_RANK_STEPS = 20, 160  # whose rows are timed, where rows do not travel
_EASILY = 0.25  # of the memory that is available


class RowSampling:
    """Samples the reads of a run once, and simulates stores over them.

    Args:
        config: The run.
        task: Its task, over a `RowlessStore`.
        specs: Its tables.
        pace: Told how long the reference of rows takes meanwhile.
        num_ranks: Ranks to plan for.
        num_steps: Steps of the run.
        steps_per_epoch: Steps of an epoch.
        sample_steps: Steps to simulate at most.
    """

    def __init__(
        self,
        config: RunConfig,
        task: Task[Any],
        specs: Sequence[TableSpec],
        pace: Pace,
        num_ranks: int,
        num_steps: int,
        steps_per_epoch: int,
        sample_steps: int,
    ) -> None:
        self._config, self._task, self._specs, self._pace = config, task, specs, pace
        self._num_ranks, self._num_steps = num_ranks, num_steps
        self._steps_per_epoch, self._sample_steps = steps_per_epoch, sample_steps
        self._sample: Sample | None = None

    def traffic(self, config: RunConfig, notes: list[str]) -> Traffic | None:
        """Bytes and hits of rows that travel; adds to `notes` why there are none."""
        wanted = config.embeddings
        if self._num_ranks == 1:  # a cache of one rank stays empty, but takes memory
            has_cache = isinstance(wanted, StoreConfig) and wanted.cache.share > 0
            if not has_cache or wanted.is_asynchronous:
                return None
        if not isinstance(wanted, StoreConfig) or not wanted.is_shared:
            notes.append(
                "bytes between ranks are predicted for rows that ranks share: this run sends "
                "gradients alone"
            )
            return None
        if wanted.is_asynchronous:
            notes.append("the bytes of a served store are not predicted: its ranks do not train "
                         "in step")  # fmt: skip
            return None
        with self._pace.of_rows():
            return self._simulated(config, wanted, notes)

    def cost(self, config: RunConfig, traffic: Traffic | None) -> RowCost:
        """What rows cost: those that travel, to the rank that has most to send."""
        if traffic is None:
            return self._replicas(config)
        return RowCost(traffic.rows_s, busiest_bytes(traffic), traffic.num_rounds)

    def _simulated(self, config: RunConfig, wanted: StoreConfig, notes: list[str]) -> Traffic:
        """The traffic of all ranks: simulated, or extrapolated from several numbers of ranks."""
        num_ranks = min(self._num_ranks, MOST_RANKS)
        if self._sample is None:
            most = _RANK_STEPS if self._num_ranks <= MOST_RANKS else _RANK_STEPS_OF_MANY
            task = self._sampled_task(wanted, notes)
            if isinstance(task, RetrievalTask) and task is not self._task:
                scores = config.train.batch_size * task.data.items.num_rows
                most = min(most, max(_LEAST_RANK_STEPS, _MOST_SCORES // scores))
            steps = min(self._sample_steps, max(2, most // num_ranks))
            steps = 2 if num_ranks == 1 else steps
            self._sample = Sample(
                config, task, num_ranks, self._num_steps, steps, self._steps_per_epoch
            )
        busiest = busiest_owner(self._sample.reads, self._num_ranks)
        if self._num_ranks <= MOST_RANKS:
            return replace(self._sample.traffic(wanted), busiest=busiest)
        sizes = sorted({max(2, num_ranks // 4), max(2, num_ranks // 2), num_ranks})
        found = [self._sample.traffic(wanted, size) for size in sizes]
        off = rule_error(found)
        words = ", ".join(map(str, sizes[:-1]))
        notes += [
            f"simulated: {words} and {num_ranks} ranks. Extrapolated to {self._num_ranks:,}: "
            f"bytes, hit rate and the time of rows. The same rules, given {words} ranks, are off "
            f"by {off.sent:+.1%} of the bytes and {off.hit_rate:+.3f} of the hit rate at "
            f"{off.num_ranks}",
            "unknown: how vocabularies grow with more data, ranks that are slower than others, "
            "links that share a switch, failures, and what the larger global batch and staler "
            "copies do to the loss",
        ]
        if self._steps_per_epoch < _FEW_STEPS:
            num_steps = self._steps_per_epoch
            epoch = "one step" if num_steps == 1 else f"{num_steps} steps"
            notes.append(
                f"an epoch of so many ranks is {epoch}, in which caches are nearly empty: if there "
                "are more examples than the run reads, say how many, --examples N"
            )
        cache = wanted.cache
        hits = lasting_hit_rate(cache.read_staleness, cache.write_staleness, self._num_ranks)
        return replace(extrapolate(found, self._num_ranks, hits), busiest=busiest)

    def _sampled_task(self, wanted: StoreConfig, notes: list[str]) -> Task[Any]:
        """The task whose reads are recorded: one that is trained where its weights draw items."""
        if not isinstance(self._task, RetrievalTask):
            return self._task
        recorded, free = RecordedConfig(wanted), available_bytes()
        if free is not None and recorded.num_bytes(self._specs, 0) * 2 > _EASILY * free:
            notes.append("items are drawn by the initial weights: a trained model draws fewer")
            return self._task
        task = TASKS[self._config.task](replace(self._config, embeddings=recorded))
        task.begin()
        return task

    def _replicas(self, config: RunConfig) -> RowCost:
        """What rows cost of which each rank has all."""
        wanted = config.embeddings
        if not isinstance(wanted, StoreConfig) or wanted.is_asynchronous:
            return RowCost(0.0, 0.0, 0.0)
        num_ranks = min(self._num_ranks, MOST_RANKS)
        steps = min(_OWN_STEPS, max(2, _OWN_RANK_STEPS // num_ranks))
        task = self._sampled_task(wanted, [])
        sample = Sample(config, task, num_ranks, self._num_steps, steps, self._steps_per_epoch)
        with self._pace.of_rows():
            found = replicas(wanted, sample.reads, sample.share)
        return found.of_ranks(self._num_ranks)
