"""Probed clusterings of a run: how many blocks of ids, how long and how fast their rows train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables.block_clustering import MAX_BLOCKS

BYTES_PER_FLOAT = 4
_MAX_PASSES = 1_000
_MOST_BLOCKS = 8
_MOST_VISITS = 2.0
TRIED_RATES = 4  # of a probe that chooses its rate, usually
_IDS_PER_CODE = 64  # on MovieLens 47 gave a higher AUC of validation than 12


@dataclass(frozen=True)
class ProbeConfig:
    """How rows of their own are trained for ids before a clustering.

    Attributes:
        blocks: Blocks of ids that are probed one after the other, P: only N·dim / P numbers and
            their moments exist at a time. By default chosen for each table, see `blocks_of`.
        passes: Passes over the training data that a block gets, of those examples that have an id
            of it.
        visits: Most visits of an example per pass, all blocks together; if ids of a block are in
            more examples than that allows, a sample of them is read. By default 2, but no more than
            keep all probes of a run within as many examples as the run itself reads, see
            `share_of`.
        rate: Learning rate of the rows; by default chosen by the loss of validation.
        helper: Whether tables have a helper after the last clustering.
    """

    blocks: int | None = None
    passes: int = 1
    visits: float | None = None
    rate: float | None = None
    helper: bool = False

    def __post_init__(self) -> None:
        require_between(self, 1, MAX_BLOCKS, "blocks")
        require_between(self, 1, _MAX_PASSES, "passes")
        require_at_least(self, 0, "visits")
        require_between(self, 0, MAX_RATE, "rate")
        if self.rate == 0 or self.visits == 0:
            raise ConfigError("rate and visits of a probe must be > 0")

    def blocks_of(self, spec: TableSpec, state_numbers: int, ids_per_code: float = 0.0) -> int:
        """The number of blocks of a table.

        By default as many as leave 64 ids per code in the first block, on which codes are fitted,
        but at most 8, and no fewer than keep the extra memory below a quarter of what a full table
        would take with its optimizer state.

        Args:
            spec: The table.
            state_numbers: Numbers that the optimizer of the table stores per weight.
            ids_per_code: Ids that occur, per row of codes after the clustering.
        """
        if self.blocks is not None:
            return self.blocks
        full = BYTES_PER_FLOAT * spec.num_rows * spec.dim * (1 + state_numbers)
        fitting = (p for p in range(1, _MOST_BLOCKS) if 4 * _num_bytes(spec, p) < full)
        wanted = min(_MOST_BLOCKS, int(ids_per_code / _IDS_PER_CODE))
        return max(next(fitting, _MOST_BLOCKS), wanted)

    def share_of(self, touched: Sequence[float], run_visits: float, tried: float = 1.0) -> float:
        """The share of the examples with ids of a block that the block reads, 0 to 1.

        Args:
            touched: For each block, the share of the examples that have ids of it.
            run_visits: Visits of an example that keep this probe within its part of the run's own.
            tried: The share of the examples that have ids on which rates are tried.
        """
        visits = sum(touched)
        if self.visits is not None:
            return min(1.0, self.visits / visits)
        trials = 0.0 if self.rate is not None else TRIED_RATES * tried
        return min(1.0, _MOST_VISITS / visits, run_visits / (self.passes * visits + trials))

    def num_bytes(self, spec: TableSpec, state_numbers: int) -> int:
        """The most memory of a probe of a table: rows of a block, their moments and indices."""
        return _num_bytes(spec, self.blocks_of(spec, state_numbers))


def _num_bytes(spec: TableSpec, blocks: int) -> int:
    """Rows of a block with a moment and an id each, and a byte for every id of the table."""
    row = BYTES_PER_FLOAT * (spec.dim + 1) + 8
    return -(-spec.num_rows // blocks) * row + spec.num_rows
