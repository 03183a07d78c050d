"""Plan a run from its data, its model and simulated ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.models import MODELS
from outsize.negatives import ItemCache, NegativeCacheConfig
from outsize.plan.counted_memory import (
    embedding_memory,
    negative_cache_memory,
    optimizer_state_bytes,
    tensor_bytes,
    trained_tables,
)
from outsize.plan.dry_step import DryStep, dry_step, resident_bytes
from outsize.plan.machine import Machine, Pace
from outsize.plan.peak import peak_parts, table_bytes
from outsize.plan.plan import Plan
from outsize.plan.predicted_time import predicted_time, time_notes
from outsize.plan.reads import recording_store
from outsize.plan.row_sampling import RowSampling
from outsize.plan.rowless import RowlessConfig
from outsize.plan.step_time import StepTime
from outsize.plan.traffic import MOST_RANKS, SAMPLE_STEPS, Traffic
from outsize.registries import name_of
from outsize.spec import MemoryUse
from outsize.training.available_memory import available_bytes
from outsize.training.config import RunConfig
from outsize.training.loop_state import dense_state
from outsize.training.memory_needs import refusing_what_memory_cannot_hold
from outsize.training.tasks import TASKS, ClickTask, RetrievalTask, Task

_EASILY = 0.25  # of the memory that is available


class Planner:
    """Reads a run's data once and plans the run, and others that differ in their embeddings only.

    Args:
        config: The run.
        num_ranks: Ranks to plan for.
        sample_steps: Steps to simulate at most, where rows travel.
        limit_bytes: The memory that a rank may take; by default its share of what this machine has
            to give, or all of it if ranks have a link.
        machine: The machine of a rank, to predict the time of a step; unknown by default.
        num_examples: Training examples of the whole data, if the run reads a sample of it.
    """

    def __init__(
        self,
        config: RunConfig,
        num_ranks: int = 1,
        sample_steps: int = SAMPLE_STEPS,
        limit_bytes: int | None = None,
        machine: Machine | None = None,
        num_examples: int | None = None,
    ) -> None:
        if num_examples is not None and num_examples < 1:
            raise ConfigError(f"--examples must be at least 1, but got {num_examples}")
        if num_ranks < 1:
            raise ConfigError(f"--ranks must be at least 1, but got {num_ranks}")
        if not config.has_tables:
            raise ConfigError(
                f"model.kind = {name_of(MODELS, config.model)!r} has no tables to plan: train it "
                "for a few steps instead (--set train.steps=3)"
            )
        if sample_steps < 2:
            raise ConfigError(f"--sample-steps must be at least 2, but got {sample_steps}")
        self.config, self.num_ranks = config, num_ranks
        self._machine = machine or Machine()
        self._pace = Pace(self._machine)
        with refusing_what_memory_cannot_hold(), self._pace.of_dense():
            self.task = self._rowless_task()
            self._dry: DryStep = self._dry_step()
        per_epoch = self.task.num_batches(num_ranks)
        if num_examples is not None:
            per_epoch = -(-num_examples // (num_ranks * config.train.batch_size))
        total = per_epoch * config.train.epochs
        self.steps_per_epoch = per_epoch
        self.num_steps = min(total, config.train.steps or total)
        self.specs = list(recording_store(self.task).layout.specs)
        if limit_bytes is None:  # a link is between machines, one per rank
            limit_bytes = _own_limit(num_ranks if self._machine.link is None else 1)
        self.limit_bytes = limit_bytes
        self._rows = RowSampling(
            config, self.task, self.specs, self._pace, num_ranks, self.num_steps,
            self.steps_per_epoch, sample_steps,
        )  # fmt: skip

    def _rowless_task(self) -> Task[Any]:
        wanted = self.config.embeddings
        rowless = RowlessConfig(wanted.dim, wanted.init_std)
        return TASKS[self.config.task](replace(self.config, embeddings=rowless))

    def _dry_step(self) -> DryStep:
        """The memory of a step: with the run's tables if they fit easily, else without rows.

        Tables take part because each method has kernels and temporary tensors of its own.
        """
        features, specs = self.task.embeddings.features, self.task.embeddings.specs.values()
        tables = trained_tables(self.config, features, list(specs))
        held = table_bytes(self.config, tables)
        free = available_bytes()
        timed = self._machine.is_known
        if not held or (free is not None and held > _EASILY * free):
            return dry_step(self.config, self.task, self.num_ranks, timed=timed)
        del self.task  # the data is read once more: a run has it once
        task = TASKS[self.config.task](self.config)
        found = dry_step(self.config, task, self.num_ranks, timed=timed)
        self.task = self._rowless_task()
        return replace(found, host_bytes=found.host_bytes - held)

    def plan(self, config: RunConfig | None = None) -> Plan:
        """The plan of the run, or of one with other embeddings."""
        config = config or self.config
        device, features = self.task.device, self.task.embeddings.features
        notes = [f"{part} was not measured: it is not in the peak" for part in self._dry.left_out]
        traffic = self._rows.traffic(config, notes)
        by_rank = [
            embedding_memory(config, features, self.specs, rank, self.num_ranks, device)
            for rank in self._ranks_that_differ(config)
        ]
        copies = [0] * len(by_rank) if traffic is None else traffic.cache_bytes
        memory = [
            sum(tables.values(), MemoryUse()) + MemoryUse(0, {str(device): {"cache": size}})
            for tables, size in zip(by_rank, copies, strict=False)
        ]
        cache, cached_items = self._negative_cache()
        memory = [use + (cached_items or MemoryUse()) for use in memory]
        tables = trained_tables(config, features, self.specs)
        peak, device_peak = peak_parts(
            config, self._dry, self.task, tables, memory[0], cache, cached_items, traffic,
            self.num_ranks, self._share_read(),
        )  # fmt: skip
        return Plan(
            num_ranks=self.num_ranks,
            device=str(device),
            num_examples=self._num_examples(),
            tables=self.specs,
            table_memory=by_rank[0],
            memory=memory if len(memory) == self.num_ranks else memory * self.num_ranks,
            total_memory=self._total(config, memory, cached_items),
            negative_cache=cached_items,
            num_dense=sum(weight.numel() for weight in self.task.trained.parameters()),
            peak=peak,
            device_peak=device_peak,
            steps_per_epoch=self.steps_per_epoch,
            num_steps=self.num_steps,
            checkpoint_bytes=self._checkpoint_bytes(config, by_rank[0], tables, traffic),
            num_checkpoints=config.checkpoint.keep + int(config.checkpoint.best),
            traffic=traffic if self.num_ranks > 1 else None,
            limit_bytes=self.limit_bytes,
            time=self._time(config, tables, traffic, notes),
            notes=notes,
        )

    def _time(
        self, config: RunConfig, tables: nn.Module, traffic: Traffic | None, notes: list[str]
    ) -> StepTime | None:
        if not self._machine.is_known:
            return None
        weights = [*self.task.trained.parameters(), *tables.parameters()]
        rows = self._rows.cost(config, traffic)
        dense_bytes = sum(tensor_bytes(weight) for weight in weights)
        overlaps = config.embeddings.overlap
        notes += time_notes(self._machine, self.num_ranks, overlaps=overlaps)
        return predicted_time(
            self._machine, self._pace, self._dry.dense_s, rows, dense_bytes, self.num_ranks,
            self.steps_per_epoch,
        )  # fmt: skip

    def _ranks_that_differ(self, config: RunConfig) -> Sequence[int]:
        """The ranks to count: all of few; of many, and of equal ones, the first, which has most."""
        is_shared = config.embeddings.is_shared
        return range(self.num_ranks) if is_shared and self.num_ranks <= MOST_RANKS else (0,)

    def _negative_cache(self) -> tuple[ItemCache | None, MemoryUse | None]:
        """The cache of the dry step, and what a rank of the run has of it."""
        if not isinstance(self.task, RetrievalTask):
            return None, None
        modules = self.task.negatives.modules()
        cache = next((part for part in modules if isinstance(part, ItemCache)), None)
        if cache is None:
            return None, None
        is_shared = isinstance(self.config.negatives, NegativeCacheConfig)
        num_ranks = self.num_ranks if is_shared else 1
        return cache, negative_cache_memory(cache, 0, num_ranks, self.task.device)

    def _total(
        self, config: RunConfig, memory: list[MemoryUse], items: MemoryUse | None
    ) -> MemoryUse:
        """The memory of all ranks, where what each has a copy of counts once."""
        if len(memory) == self.num_ranks:
            return sum(memory, MemoryUse())
        is_shared = config.embeddings.is_shared
        if is_shared:
            return sum(memory * self.num_ranks, MemoryUse())
        others = [items] * (self.num_ranks - 1) if items is not None else []
        return sum(others, memory[0])

    def _checkpoint_bytes(
        self,
        config: RunConfig,
        tables: dict[str, MemoryUse],
        trained: nn.Module,
        traffic: Traffic | None,
    ) -> int:
        """Bytes of weights, optimizer state, rows and caches, without names."""
        dense = dense_state(self.task.trained, self.task.embeddings.store).values()
        size = sum(tensor_bytes(tensor) for tensor in dense)
        size += optimizer_state_bytes(config, self.task.trained)
        size += optimizer_state_bytes(config, trained)
        of_tables = sum(use.total_bytes for use in tables.values())
        if config.embeddings.is_shared:
            of_tables *= self.num_ranks
        size += of_tables + (0 if traffic is None else traffic.cache_state_bytes)
        _, items = self._negative_cache()
        return size + (0 if items is None else items.total_bytes * self.num_ranks)

    def _share_read(self) -> float:
        """The share of the training examples that the run reads at all."""
        if not isinstance(self.task, ClickTask):
            return 1.0
        return min(1.0, self.num_steps / self.steps_per_epoch)

    def _num_examples(self) -> dict[str, int]:
        if isinstance(self.task, ClickTask):
            return {split: self.task.data.num_examples(split) for split in SPLITS}
        if isinstance(self.task, RetrievalTask):
            return {split: self.task.data.num_pairs(split) for split in SPLITS}
        return {}


def plan_run(
    config: RunConfig,
    num_ranks: int = 1,
    *,
    sample_steps: int = SAMPLE_STEPS,
    limit_bytes: int | None = None,
) -> Plan:
    """Say what a run will take, without training it.

    The data is read, or encoded if it has not been, and one batch goes through a model without
    rows. Where rows travel between ranks, the stores themselves run on a sample of the batches.

    Args:
        config: The run.
        num_ranks: Number of ranks.
        sample_steps: Steps of that sample at most.
        limit_bytes: The memory that a rank may take; by default its share of what this machine has
            to give.
    """
    return Planner(config, num_ranks, sample_steps, limit_bytes).plan()


def _own_limit(num_ranks: int) -> int | None:
    """The memory of a rank if all of them run on this machine."""
    free = available_bytes()
    return None if free is None else (free + resident_bytes()) // num_ranks
