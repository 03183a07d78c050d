"""Probed clusterings in a run: train rows of their own for ids, then cluster tables by them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import ReclusterReport
from outsize.hashing import derive_seed
from outsize.ranks.collectives import value_of_first
from outsize.tables import Probe, ProbeBlock
from outsize.tables.clustered_table import ClusteredTable
from outsize.tables.saved_tables import SavedTables
from outsize.training.probe_config import ProbeConfig
from outsize.training.probe_gain import Losses, losses_of
from outsize.training.probe_rate import RATES, choose_rate, tried_ids
from outsize.training.tasks import Task


@dataclass(frozen=True)
class ProbeReport:
    """What a probe did and cost.

    Attributes:
        blocks: Blocks of ids, the most of a table.
        rate: Learning rate of the rows.
        visits: Examples that it read, over all ranks.
        steps: Steps of the rows.
        extra_bytes: The most memory of rows, moments and indices, per rank.
        seconds: Elapsed time.
        kept: Whether tables were clustered by the rows, and not by their own vectors.
        gained: How much lower the loss of validation is than after a clustering without the rows,
            where the two are compared.
        gained_in_training: How much lower the loss of training is.
    """

    blocks: int
    rate: float
    visits: int
    steps: int
    extra_bytes: int
    seconds: float
    kept: bool = True
    gained: float | None = None
    gained_in_training: float | None = None

    def as_metrics(self) -> dict[str, Any]:
        """The report as JSON values, for a line of metrics."""
        return asdict(self)


def skipped_probe(rejected: int) -> dict[str, Any]:
    """The line of metrics of a probe that was not made.

    A rejected probe ends the probes of a run: in the runs recorded, later ones were rejected too.

    Args:
        rejected: The step of the probe that was not used.
    """
    return {"skipped": f"the probe of step {rejected:,} was not used"}


def recluster_probed(
    task: Task[Any],
    config: ProbeConfig,
    step: int,
    optimizer: Optimizer,
    helper: bool,
    weighted: bool,
    state_numbers: int,
    run_visits: float = math.inf,
    reads_again: bool = False,
) -> tuple[dict[str, ReclusterReport], ProbeReport]:
    """Probe the ids of all tables that can be probed, and recluster the tables.

    Where training reads the same examples again, and what the rows learned is mostly noise of these
    (see `probe_gain`), tables are clustered by their own vectors, as without a probe. If it fails
    or is stopped, no table has changed, and doing it again gives the same result.

    Args:
        task: The model with its data.
        config: How to probe.
        step: Steps taken; the data that training has read by then is used.
        optimizer: The optimizer of the dense weights and tables.
        helper: Whether tables have a helper afterwards.
        weighted: Whether ids weigh as often as they occur.
        state_numbers: Numbers that the optimizer stores per weight of a table.
        run_visits: Visits of an example that keep this probe within its part of the run's own.
        reads_again: Whether training reads examples again that it has read.
    """
    started = time.perf_counter()
    counts = task.count_occurring(step)
    weights = counts if weighted else {name: (n > 0).long() for name, n in counts.items()}
    tables = tables_of(task)
    num_seen = {name: int(torch.count_nonzero(counts[name])) for name in tables if name in counts}
    ids_per_code: dict[str, float] = value_of_first(
        {n: num_seen.get(n, t.spec.num_rows) / t.num_main_after(helper) for n, t in tables.items()}
    )
    blocks = {
        name: config.blocks_of(table.spec, state_numbers, ids_per_code[name])
        for name, table in tables.items()
    }
    probe = Probe(tables, weights, blocks=blocks, helper=helper, tolerance=task.tolerance)
    seed = derive_seed(step, "probe")
    num_features = sum(feature.table in tables for feature in task.embeddings.features)
    tried = tried_ids(probe, counts, num_features, seed) if config.rate is None else {}
    share = config.share_of(
        touched_shares(task, probe, counts), run_visits, _touched_share(task, tried, counts)
    )
    trained = _Trained(task, step, share)
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices), task.frozen():
        _seed(task.device, seed)
        probe.rate = config.rate or choose_rate(probe, tried, trained.loss_after)
        for number in range(probe.num_blocks):
            with probe.block(number) as block:
                for _ in range(config.passes):
                    trained.train(block)
    task.raise_if_flawed()
    is_compared = reads_again and task.validates_loss
    at_best_rate = config.rate is None and probe.rate < RATES[-1]
    clustered = _clustered(probe, task, step, optimizer, is_compared, at_best_rate)
    extra = sum(use.total_bytes for use in probe.memory_by_table().values())
    gain = clustered.gain
    return clustered.reports, ProbeReport(
        blocks=probe.num_blocks,
        rate=probe.rate,
        visits=trained.visits,
        steps=trained.steps,
        extra_bytes=max(extra, clustered.saved_bytes),
        seconds=time.perf_counter() - started,
        kept=clustered.kept,
        gained=None if gain is None else gain.validation,
        gained_in_training=None if gain is None else gain.training,
    )


class _Clustered(NamedTuple):
    """What came of the rows of a probe."""

    reports: dict[str, ReclusterReport]
    kept: bool = True
    gain: Losses | None = None
    saved_bytes: int = 0


def _clustered(
    probe: Probe,
    task: Task[Any],
    step: int,
    optimizer: Optimizer,
    is_compared: bool,
    at_best_rate: bool,
) -> _Clustered:
    """Cluster tables by the rows of a probe; if it is compared, by what is better of two.

    The other is a clustering by the tables' own vectors, which is done again if it is better: so
    only one copy of the tables is needed.
    """
    if not is_compared:
        return _Clustered(probe.apply(optimizer))
    saved = SavedTables(tables_of(task).values(), optimizer)
    try:
        task.recluster(step, optimizer)
        with task.frozen():
            without = losses_of(task, step)
        saved.restore()
        reports = probe.apply(optimizer)
        with task.frozen():
            gain = losses_of(task, step).below(without)
    except BaseException:
        saved.restore()
        raise
    if gain.holds(at_best_rate):
        return _Clustered(reports, True, gain, saved.num_bytes)
    saved.restore()
    return _Clustered(task.recluster(step, optimizer), False, gain, saved.num_bytes)


def _seed(device: torch.device, seed: int) -> None:
    """Seed what a model may draw from, such as dropout that stays on."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


class _Trained:
    """Trains the rows of blocks, and counts.

    Args:
        task: The model with its data.
        step: Steps taken; data that training has read by then is used.
        share: Share of the examples to read.
    """

    def __init__(self, task: Task[Any], step: int, share: float) -> None:
        self.task = task
        self.visits = self.steps = 0
        self._step, self._share = step, share

    def train(self, block: ProbeBlock) -> None:
        """Read the data once."""
        for batch in self.task.probe_batches(self._step, block, self._share):
            block.step(self.task.loss(batch))
            self.visits += self.task.num_examples(batch)
            self.steps += 1

    def loss_after(self, block: ProbeBlock) -> float:
        """Read the data once; the loss of validation, see `Task.probed_loss`."""
        self.train(block)
        return self.task.probed_loss(block)


def tables_of(task: Task[Any]) -> dict[str, ClusteredTable]:
    """The tables of a task that can be probed."""
    tables = {} if task.embeddings.tables is None else dict(task.embeddings.tables.items())
    return {name: table for name, table in tables.items() if isinstance(table, ClusteredTable)}


def touched_shares(
    task: Task[Any], probe: Probe, counts: Mapping[str, Tensor]
) -> tuple[float, ...]:
    """For each block, the share of the examples that have ids of it; their sum is > 0.

    An example is visited by a block if any of its ids is in the block; ids of different features
    are taken as independent. Where a task cannot tell, every block visits all examples.

    Args:
        task: The model with its data.
        probe: The blocks.
        counts: How often each id of each table occurs; needed by the first rank only.
    """
    everything = (1.0,) * probe.num_blocks
    if not task.finds_ids:
        return everything
    missed = torch.ones(probe.num_blocks, dtype=torch.float64)
    for feature in task.embeddings.features:
        if feature.table in counts and feature.table in tables_of(task):
            seen = counts[feature.table]
            blocks = probe.block_of(feature.table).cpu()[seen > 0].long()
            found = torch.bincount(blocks, seen[seen > 0].double(), minlength=probe.num_blocks)
            missed *= 1 - found / found.sum()
    shares: tuple[float, ...] = value_of_first(tuple((1 - missed).tolist()))
    return shares if sum(shares) else everything


def _touched_share(
    task: Task[Any], ids: Mapping[str, Tensor], counts: Mapping[str, Tensor]
) -> float:
    """The share of the examples that have one of these ids; as `touched_shares`."""
    if not task.finds_ids:
        return 1.0
    missed = 1.0
    for feature in task.embeddings.features:
        if feature.table in counts and feature.table in ids:
            seen = counts[feature.table]
            found = seen[ids[feature.table].cpu()].sum().item()
            missed *= 1 - found / max(1, seen.sum().item())
    share: float = value_of_first(1 - missed)
    return share
