"""Probed clustering: before ids are clustered, each gets a row of its own for a while.

CCE clusters what its compressed vectors say, and at a small budget that is mostly which ids collide
by chance. A probe gives ids rows of their own, started at their current vectors, and trains those
alone on the training data, with the model and the table frozen. The rows are clustered and thrown
away. Ids are probed in P blocks, so that no more than N·dim / P numbers and their moments exist at
a time: a block is assigned to codes as soon as it is trained (see `block_clustering`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor
from torch.optim import Optimizer

from outsize.contracts import EmbeddingTable, ReclusterReport
from outsize.errors import ConfigError, NonFiniteError, ReclusterError
from outsize.ranks.collectives import gather_rows, world_size
from outsize.ranks.failures import failing_together
from outsize.ranks.first_rank import on_first_rank
from outsize.spec import MemoryUse
from outsize.suggestions import few
from outsize.tables.clustered_table import ClusteredTable

_EPSILON = 1e-10
RATE = 0.1


class ProbeRows:
    """Rows of their own for some ids of a table, trained by row-wise Adagrad.

    Args:
        table: The table.
        ids: The ids, ascending.
    """

    def __init__(self, table: ClusteredTable, ids: Int64[Tensor, " n"]) -> None:
        self.ids = ids
        self._look_up = table.lookup  # before it is shadowed
        with torch.no_grad():
            self.rows = self._look_up(ids).float()
        self.rows.requires_grad_()
        self._sums = self.rows.new_zeros(ids.numel())

    def lookup(self, ids: Int64[Tensor, " n"]) -> Float[Tensor, "n dim"]:
        """The rows of ids that have one, and the table's vectors of others."""
        with torch.no_grad():
            others = self._look_up(ids)
            slots, has_row = self._find(ids)
            places = has_row.nonzero().flatten()
        own = F.embedding(slots[places], self.rows, sparse=True)
        return others.index_copy(0, places, own.to(others.dtype))

    def contain(self, ids: Int64[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Which of the ids have a row."""
        return self._find(ids)[1]

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each id, and whether it has one."""
        if not self.ids.numel():
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        slots = torch.searchsorted(self.ids, ids).clamp_max(self.ids.numel() - 1)
        return slots, self.ids[slots] == ids

    @torch.no_grad()
    def update(self, gradient: Tensor | None, rate: float) -> None:
        """Take a step of row-wise Adagrad, with gradients averaged over ranks."""
        slots, gradients = self._averaged(gradient)
        if not slots.numel():
            return
        sums = self._sums[slots] + gradients.square().mean(dim=1)
        self._sums[slots] = sums
        scale = rate / (sums.sqrt() + _EPSILON)
        self.rows[slots] -= gradients * scale.unsqueeze(1)

    def _averaged(self, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
        """Distinct slots and their gradients, the same on all ranks."""
        slots, values = self.ids[:0], self.rows.detach()[:0]
        if gradient is not None:
            gradient = gradient.coalesce()
            slots, values = gradient.indices()[0], gradient.values()
        size = world_size()
        if size == 1:
            return slots, values
        everyone = list(zip(gather_rows(slots), gather_rows(values), strict=True))
        union = torch.cat([some for some, _ in everyone]).unique()
        total = values.new_zeros(union.numel(), values.shape[1])
        for some, theirs in everyone:  # each distinct, so that every sum is in the order of ranks
            total[torch.searchsorted(union, some)] += theirs
        return union, total / size

    def require_finite(self, name: str) -> None:
        """Raise a `NonFiniteError` if training has made a row NaN or infinite."""
        if not bool(torch.isfinite(self.rows).all()):
            raise NonFiniteError(
                f"table {name!r}: rows of a probe became NaN or infinite: lower its rate "
                "(embeddings.recluster.probe.rate), and look at the training data and the model"
            )

    def memory_use(self) -> MemoryUse:
        """The rows as parameters, their moments, and the ids of the block."""
        return MemoryUse.of(
            {"parameters": [self.rows], "optimizer": [self._sums], "index": [self.ids]}
        )


class ProbeBlock:
    """The rows of one block of ids, of every table that is probed, while they are trained.

    Args:
        rows: Rows by table.
        rate: Learning rate of the rows.
    """

    def __init__(self, rows: Mapping[str, ProbeRows], rate: float) -> None:
        self.rows = dict(rows)
        self.rate = rate

    def contains(self, table: str, ids: Int64[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
        """Which ids of a table are in this block.

        Examples without any do not train its rows, and may be left out.
        """
        if table not in self.rows:
            return torch.zeros_like(ids, dtype=torch.bool)
        return self.rows[table].contain(ids)

    def step(self, loss: Float[Tensor, ""]) -> None:
        """Train the rows by the gradient of a loss, averaged over ranks; all ranks call it.

        Nothing else gets a gradient.
        """
        own = [rows.rows for rows in self.rows.values()]
        gradients: tuple[Tensor | None, ...] = (None,) * len(own)
        if loss.requires_grad:
            gradients = torch.autograd.grad(loss, own, allow_unused=True)
        for rows, gradient in zip(self.rows.values(), gradients, strict=True):
            rows.update(gradient, self.rate)


class Probe:
    """Trains rows of their own for ids, block by block, and clusters tables by them.

    While a block is entered, look-ups of its ids in the tables read these rows; all others read the
    tables. Compute losses with the model itself, not with a `DistributedDataParallel` around it,
    and in evaluation mode if it has dropout or batch statistics. Nothing but the rows is trained.

    With several ranks, all make the same calls, each with its part of the data; the rows stay equal
    on all ranks, and so do the tables. If any rank raises, all raise, and no table has changed.

    Args:
        tables: The tables, by name; those that cannot be probed are left out.
        counts: For each table, how often each of its ids occurs, if known; ids that never occur
            have no row. Needed by the first rank only.
        blocks: Number of blocks, P; or one for each table, of which the most counts.
        rate: Learning rate of the rows.
        helper: Whether half of a table's rows are a helper after the clustering, see
            `CCETable.recluster`.
        tolerance: Of k-means, as in `CCETable.recluster`.

    Example:
        >>> table = outsize.build_table("cce", outsize.TableSpec("ad", 1000, 8), max_params=256)
        >>> probe = outsize.Probe({"ad": table}, blocks=4)
        >>> for number in range(probe.num_blocks):
        ...     with probe.block(number) as block:
        ...         for ids in torch.arange(1000).split(100):
        ...             some = ids[block.contains("ad", ids)]
        ...             wanted = torch.sin(some / 100).unsqueeze(1)
        ...             block.step((table(some) - wanted).square().sum())
        >>> probe.apply()["ad"].num_clusters
        64
    """

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTable],
        counts: Mapping[str, Int64[Tensor, " num_rows"]] | None = None,
        *,
        blocks: int | Mapping[str, int] = 8,
        rate: float = RATE,
        helper: bool = True,
        tolerance: float = 0.0,
    ) -> None:
        self._tables = {
            n: table for n, table in tables.items() if isinstance(table, ClusteredTable)
        }
        if not self._tables:
            raise ConfigError("a probe needs a table of the method cce, but got none")
        if not rate > 0:
            raise ConfigError(f"the rate of a probe must be > 0, but got {rate}")
        wanted = dict.fromkeys(self._tables, blocks) if isinstance(blocks, int) else blocks
        if missing := sorted(self._tables.keys() - wanted.keys()):
            raise ConfigError(
                "blocks of a probe must be a number, or one for each table: "
                f"{few(missing)} has none"
            )
        self.num_blocks = max(wanted[name] for name in self._tables)
        self.rate = rate
        known = counts or {}
        self._clusterings = {
            name: table.cluster_blocks(
                known.get(name), blocks=wanted[name], helper=helper, tolerance=tolerance
            )
            for name, table in self._tables.items()
        }
        self._num_done = 0
        self._is_applied = False
        self._most: dict[str, MemoryUse] = {}

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables that are probed."""
        return tuple(self._tables)

    @contextmanager
    def block(self, number: int) -> Iterator[ProbeBlock]:
        """Enter a block, from 0 to `num_blocks` − 1 in this order; when left, it is clustered."""
        if number != self._num_done or number >= self.num_blocks:
            raise ConfigError(
                f"blocks of a probe come in order, each once: {self._num_done} is next, of "
                f"{self.num_blocks}, but got {number}"
            )
        ids = {name: clustering.ids_of(number) for name, clustering in self._clusterings.items()}
        with self._entered(ids, self.rate) as block:
            yield block
        with failing_together(ReclusterError):
            for name, rows in block.rows.items():
                rows.require_finite(name)
        for name, rows in block.rows.items():
            add = self._clusterings[name].add
            on_first_rank(partial(add, rows.ids, rows.rows.detach()))
            use = rows.memory_use()
            if name not in self._most or use.total_bytes > self._most[name].total_bytes:
                self._most[name] = use
        self._num_done += 1

    @contextmanager
    def trial(self, rate: float, ids: Mapping[str, Int64[Tensor, " n"]]) -> Iterator[ProbeBlock]:
        """Enter some ids to try out a rate; their rows are discarded.

        Args:
            rate: Learning rate of the rows.
            ids: The ids by table, ascending; the same on all ranks.
        """
        with self._entered(ids, rate) as block:
            yield block

    @contextmanager
    def _entered(self, ids: Mapping[str, Tensor], rate: float) -> Iterator[ProbeBlock]:
        """Let look-ups of these ids read rows of their own."""
        for name, table in self._tables.items():
            if "lookup" in table.__dict__:
                raise ConfigError(
                    f"table {name!r}: a block of a probe is entered already: leave it before "
                    "another is entered"
                )
        rows = {name: ProbeRows(table, ids[name]) for name, table in self._tables.items()}
        try:
            for name, table in self._tables.items():
                table.__dict__["lookup"] = rows[name].lookup
            yield ProbeBlock(rows, rate)
        finally:
            for table in self._tables.values():
                table.__dict__.pop("lookup", None)

    def apply(self, optimizer: Optimizer | None = None) -> dict[str, ReclusterReport]:
        """Recluster the tables by their rows, once every block was trained.

        Args:
            optimizer: The optimizer that trains the tables; its state for them is reset.

        Returns:
            The reports by table; their errors are those of the rows.
        """
        if self._num_done < self.num_blocks:
            raise ConfigError(
                f"{self._num_done} of the {self.num_blocks} blocks of a probe are trained: enter "
                "the others before apply()"
            )
        if self._is_applied:
            raise ConfigError("a probe reclusters its tables once: begin another to do it again")
        plans = {
            name: table.plan_blocks(self._clusterings[name], optimizer)
            for name, table in self._tables.items()
        }
        self._is_applied = True
        return {name: plan.apply() for name, plan in plans.items()}

    def block_of(self, table: str) -> UInt8[Tensor, " num_rows"]:
        """The block of each id of a table; 255 for ids that never occur."""
        return self._clusterings[table].block_of

    def memory_by_table(self) -> dict[str, MemoryUse]:
        """The most that a block took so far, by table: its rows, and what clusters them."""
        return {
            name: use + self._clusterings[name].memory_use() for name, use in self._most.items()
        }
