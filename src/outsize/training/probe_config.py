"""Probed clusterings of a run: how many blocks of ids, how long and how fast their rows train."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.errors import ConfigError
from outsize.spec import TableSpec
from outsize.tables.block_clustering import MAX_BLOCKS

_MAX_PASSES = 1_000


@dataclass(frozen=True)
class ProbeConfig:
    """How rows of their own are trained for ids before a clustering.

    Attributes:
        blocks: Blocks of ids that are probed one after the other, P: only N·dim / P numbers and
            their moments exist at a time.
        passes: Passes over the training data that a block gets, of those examples that have an id
            of it.
        visits: Most visits of an example per pass, all blocks together; if ids of a block are in
            more examples than that allows, a sample of them is read.
        rate: Learning rate of the rows; by default chosen by the loss of validation.
        helper: Whether tables have a helper after the last clustering.
    """

    blocks: int = 8
    passes: int = 1
    visits: float = 2.0
    rate: float | None = None
    helper: bool = False

    def __post_init__(self) -> None:
        require_between(self, 1, MAX_BLOCKS, "blocks")
        require_between(self, 1, _MAX_PASSES, "passes")
        require_at_least(self, 0, "visits")
        require_between(self, 0, MAX_RATE, "rate")
        if self.rate == 0 or self.visits == 0:
            raise ConfigError("rate and visits of a probe must be > 0")

    def num_bytes(self, spec: TableSpec) -> int:
        """The most memory of a probe of a table: rows of a block, their moments and indices."""
        per_block = -(-spec.num_rows // self.blocks)
        return per_block * (4 * spec.dim + 4 + 8) + spec.num_rows
