"""What a run will take: rows, parameters, memory, steps, disk and bytes between ranks."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from outsize.plan.peak import PeakParts
from outsize.plan.step_time import StepTime
from outsize.plan.traffic import Traffic
from outsize.spec import MemoryUse, TableSpec


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        num_ranks: Number of ranks.
        device: Where a rank trains.
        num_examples: Examples by split, for data that has them.
        tables: The tables.
        table_memory: What each takes on the first rank, which has the most.
        memory: What embeddings and caches take on each rank, as `MemoryUse` counts it.
        total_memory: The same over all ranks, as a run's `summary.json` has it.
        negative_cache: What a rank's part of the negative cache takes, if there is one.
        num_dense: Trainable numbers besides embeddings.
        peak: The memory of a rank at most, by part; main memory.
        device_peak: The same of its accelerator; `None` on the CPU.
        steps_per_epoch: Steps of one pass over the data.
        num_steps: Steps in all, at most: a run may stop early.
        checkpoint_bytes: Bytes of one checkpoint, of all ranks.
        num_checkpoints: How many of them are on disk at most.
        traffic: Bytes between ranks; `None` if rows do not travel, or it was not predicted.
        limit_bytes: The memory that a rank may take; `None` if unknown.
        time: The time of a step; `None` without a link or a calibration.
        notes: What was not predicted, and why.
    """

    num_ranks: int
    device: str
    num_examples: dict[str, int]
    tables: list[TableSpec]
    table_memory: dict[str, MemoryUse]
    memory: list[MemoryUse]
    total_memory: MemoryUse
    negative_cache: MemoryUse | None
    num_dense: int
    peak: PeakParts
    device_peak: PeakParts | None
    steps_per_epoch: int
    num_steps: int
    checkpoint_bytes: int
    num_checkpoints: int
    traffic: Traffic | None
    limit_bytes: int | None
    time: StepTime | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool | None:
        """Whether a rank stays within its memory; `None` if that is unknown."""
        if self.limit_bytes is None:
            return None
        largest = max(self.peak.total, 0 if self.device_peak is None else self.device_peak.total)
        return largest <= self.limit_bytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of all checkpoints that are kept."""
        return self.checkpoint_bytes * self.num_checkpoints

    def summary(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        return {
            "fits": self.fits,
            "limit_bytes": self.limit_bytes,
            "ranks": self.num_ranks,
            "device": self.device,
            "examples": self.num_examples,
            "tables": [
                {"table": s.name, "rows": s.num_rows, "dim": s.dim}
                | _plain(self.table_memory[s.name])
                for s in self.tables
            ],
            "parameters": {
                "embeddings": sum(use.num_parameters for use in self.table_memory.values()),
                "dense": self.num_dense,
            },
            "memory_by_rank": [_plain(use) for use in self.memory],
            "memory": _plain(self.total_memory),
            "negative_cache": None if self.negative_cache is None else _plain(self.negative_cache),
            "peak": self.peak.as_dict(),
            "device_peak": None if self.device_peak is None else self.device_peak.as_dict(),
            "steps_per_epoch": self.steps_per_epoch,
            "steps": self.num_steps,
            "checkpoint_bytes": self.checkpoint_bytes,
            "disk_bytes": self.disk_bytes,
            "traffic": None if self.traffic is None else _plain_traffic(self.traffic),
            "time": None if self.time is None else self.time.summary(),
            "notes": self.notes,
        }


def _plain(use: MemoryUse) -> dict[str, Any]:
    return {**asdict(use), "total_bytes": use.total_bytes}


def _plain_traffic(traffic: Traffic) -> dict[str, Any]:
    return {
        **asdict(traffic),
        "hit_rate": traffic.hit_rate,
        "bytes_per_step_and_rank": traffic.bytes_per_step,
    }
