"""The state of a negative cache on one rank: which item each row holds, and how old it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.contracts.moves import keeping_types
from outsize.hashing import derive_seed
from outsize.negatives.cache.contract import UNKNOWN_PUSHED, ItemCache
from outsize.negatives.cache.key_index import NO_KEY, KeyIndex
from outsize.negatives.cache.oldest import NEVER, OldestFirst

_EMPTY = -1  # the stamp of an empty row, which is used first


class CacheState(ItemCache):
    """Keys, weights and stamps of rows, the counters, and the indexes derived from them.

    All of it is in buffers and `get_extra_state`, so that a resumed cache makes the same draws. It
    moves between devices but keeps its dtypes: `.half()` has no effect.

    Args:
        num_items: Number of rows.
        seed: Seed of the draws.
    """

    keys: Tensor
    log_weights: Tensor
    encoded_at: Tensor
    stamps: Tensor
    clock: int = 0
    num_held: int = 0
    num_pushed: int = 0

    def __init__(self, num_items: int, seed: int) -> None:
        super().__init__()
        self.num_items = num_items
        self.seed = seed
        self._num_pushes = self._num_draws = 0
        self.register_buffer("keys", torch.full((num_items,), NO_KEY))
        self.register_buffer("log_weights", torch.full((num_items,), -torch.inf))
        self.register_buffer("encoded_at", torch.full((num_items,), NEVER))
        self.register_buffer("stamps", torch.full((num_items,), _EMPTY))
        self._derive()

    @property
    def device(self) -> torch.device:  # noqa: D102
        return self.keys.device

    def ages(self) -> Int64[Tensor, " held"]:
        """The age of each held item: commits since it was encoded."""
        return self.clock - self.encoded_at[self.keys != NO_KEY]

    def rows_of(self, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """The row of each key; −1 for keys that are not held, and for −1."""
        return self._index.rows_of(keys)

    def tensors_here(self) -> dict[str, Tensor]:  # noqa: D102
        return dict(self.named_buffers())

    def counters(self) -> list[int]:  # noqa: D102
        return [self.clock, self._num_pushes, self._num_draws, self.num_pushed, self.seed]

    @torch.no_grad()
    def resume(self, num_held_here: int, counters: Sequence[int]) -> None:  # noqa: D102
        self.keys[num_held_here:] = NO_KEY
        self.log_weights[num_held_here:] = -torch.inf
        self.encoded_at[num_held_here:] = NEVER
        self.stamps[num_held_here:] = _EMPTY
        self.set_extra_state(torch.tensor(counters))

    def get_extra_state(self) -> Tensor:
        """The counters."""
        return torch.tensor(self.counters())

    def set_extra_state(self, state: Tensor) -> None:
        """Set the counters, and rebuild what is derived from the buffers."""
        *counts, self.seed = state.tolist()
        self.clock, self._num_pushes, self._num_draws, *pushed = counts
        self.num_pushed = pushed[0] if pushed else UNKNOWN_PUSHED
        self.num_held = int((self.keys != NO_KEY).sum())
        self._derive()

    def next_generator(self, advance: bool = True) -> torch.Generator:
        """The generator of the next draw, seeded by the cache's seed and the number of draws."""
        self._num_draws += advance
        use = "negatives" if advance else "uncounted negatives"
        generator = torch.Generator(self.device)
        return generator.manual_seed(derive_seed(self.seed, use, self._num_draws))

    def _derive(self) -> None:
        """Build what is derived from the buffers."""
        self._index = KeyIndex(self.keys)
        self._by_stamp = OldestFirst(self.stamps)
        self._by_encoding = OldestFirst(self.encoded_at)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CacheState:
        """Move between devices, but keep every dtype."""
        super()._apply(keeping_types(fn), recurse)
        self._derive()
        return self
