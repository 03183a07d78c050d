"""The memory of a rank at most, from what was counted and what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from outsize.contracts import EmbeddingTable
from outsize.negatives import ItemCache
from outsize.plan.counted_memory import optimizer_state_bytes, tensor_bytes
from outsize.plan.dry_step import DryStep
from outsize.plan.traffic import Traffic
from outsize.spec import MemoryUse
from outsize.training.config import RunConfig
from outsize.training.memory_needs import state_numbers
from outsize.training.tasks import Task

_REPORT_BYTES = 20_000_000  # plots of the report, on the first rank, beyond what a step has freed
_RANKS_BYTES = 15_000_000  # the process group and its threads
_COPIES_OF_MESSAGES = 4  # as rows, as sections, as sent and as received


@dataclass(frozen=True)
class PeakParts:
    """Memory at most, by part.

    Attributes:
        counted: Embeddings and caches, as `MemoryUse` counts them.
        tables: Gradients and optimizer state of tables, which the dense optimizer trains.
        probes: Rows of a block of ids, their moments and indices, where clusterings are probed.
        dense: What data-parallel training adds: a copy of all gradients.
        messages: Messages between ranks in one step.
        process: Interpreter, libraries, data, the model and its batches; on an accelerator, the
            model and its batches.
    """

    counted: int
    tables: int
    probes: int
    dense: int
    messages: int
    process: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(asdict(self).values())

    def as_dict(self) -> dict[str, Any]:
        """The parts and their sum."""
        return {**asdict(self), "total_bytes": self.total}


def peak_parts(
    config: RunConfig,
    dry: DryStep,
    task: Task[Any],
    tables: nn.Module,
    memory: MemoryUse,
    cache: ItemCache | None,
    cached_items: MemoryUse | None,
    traffic: Traffic | None,
    num_ranks: int,
    share_read: float,
) -> tuple[PeakParts, PeakParts | None]:
    """The peak of the first rank in main memory and on its accelerator.

    Args:
        config: The run.
        dry: What a step takes without rows.
        task: The task of the dry step.
        tables: The run's tables on the meta device, if it has tables.
        memory: What the first rank counts.
        cache: The negative cache of the dry step, if there is one.
        cached_items: What the run has of it, which is part of `memory`.
        traffic: Bytes between ranks, if they were predicted.
        num_ranks: Number of ranks.
        share_read: The share of the mapped data that the run reads.
    """
    own_cache = 0 if cache is None else cache.memory_use().total_bytes
    counted = memory.total_bytes
    of_tables = sum(tensor_bytes(weight) for weight in tables.parameters())
    trained, probed = _training_bytes(config, tables), _probe_bytes(config, tables)
    weights = sum(tensor_bytes(weight) for weight in task.trained.parameters())
    copied = weights + of_tables if num_ranks > 1 and not config.is_asynchronous else 0
    sent = 0.0 if traffic is None else sum(traffic.bytes_per_step.values())
    messages = round(_COPIES_OF_MESSAGES * sent)
    process = dry.host_bytes + round(dry.unread_bytes * share_read) + _REPORT_BYTES
    process += _RANKS_BYTES if num_ranks > 1 else 0
    if dry.device_bytes is None:
        return PeakParts(counted - own_cache, trained, probed, copied, messages, process), None
    on_device = PeakParts(counted - own_cache, trained, probed, copied, messages, dry.device_bytes)
    return PeakParts(0, 0, 0, 0, 0, process), on_device


def table_bytes(config: RunConfig, tables: nn.Module, num_ranks: int = 1) -> int:
    """What tables take in training: parameters, index maps, gradients, optimizer state, probes.

    Several ranks have a copy of the gradients besides.
    """
    weights = sum(tensor_bytes(weight) for weight in tables.parameters())
    index = sum(tensor_bytes(buffer) for buffer in tables.buffers())
    copied = weights if num_ranks > 1 else 0
    return weights + index + copied + _training_bytes(config, tables) + _probe_bytes(config, tables)


def _training_bytes(config: RunConfig, tables: nn.Module) -> int:
    """Gradients and optimizer state of tables, and temporary tensors of the optimizer's step."""
    sizes = [tensor_bytes(weight) for weight in tables.parameters()]
    return sum(sizes) + optimizer_state_bytes(config, tables) + 2 * max(sizes, default=0)


def _probe_bytes(config: RunConfig, tables: nn.Module) -> int:
    """What probes of the tables take at most."""
    probe = config.embeddings.probe
    if probe is None:
        return 0
    found = [part for part in tables.modules() if isinstance(part, EmbeddingTable)]
    specs = [table.spec for table in found if table.can_probe]
    return sum(probe.num_bytes(spec, state_numbers(config)) for spec in specs)
