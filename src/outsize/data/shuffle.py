"""A shuffled order of rows on disk that keeps reads close together.

Blocks of rows are shuffled, then rows are shuffled within windows of several blocks. Row number k
of an epoch is a pure function of (seed, epoch, k).
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.hashing import derive_seed, mix_bits

BLOCK_ROWS = 4096
WINDOW_BLOCKS = 32
_CACHED_WINDOWS = 4


class BlockShuffle:
    """The shuffled order of a split's rows, different in each epoch.

    Args:
        num_rows: Rows in the split.
        seed: Seed of all epochs.
        block_rows: Rows per block; they stay in one window.
        window_blocks: Blocks per window.
    """

    def __init__(
        self,
        num_rows: int,
        seed: int,
        block_rows: int = BLOCK_ROWS,
        window_blocks: int = WINDOW_BLOCKS,
    ) -> None:
        self._num_rows = num_rows
        self._seed = seed
        self._block_rows = block_rows
        self._window_blocks = window_blocks
        self._blocks: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._windows: OrderedDict[tuple[int, int], NDArray[np.int64]] = OrderedDict()

    def rows(self, first: int, stop: int, epoch: int) -> NDArray[np.int64]:
        """The rows at positions `first … stop − 1` of an epoch."""
        _, edges = self._block_order(epoch)
        window_edges = edges[:: self._window_blocks]
        parts = [np.zeros(0, np.int64)]
        window = int(np.searchsorted(window_edges, first, side="right")) - 1
        while first < min(stop, self._num_rows):
            rows = self._window(epoch, window)
            start = int(window_edges[window])
            parts.append(rows[first - start : stop - start])
            first, window = start + len(rows), window + 1
        return np.concatenate(parts)

    def _block_order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The blocks in the order of an epoch, and the number of rows before each."""
        if self._blocks is None or self._blocks[0] != epoch:
            num_blocks = -(-self._num_rows // self._block_rows)
            order = _permutation(num_blocks, derive_seed(self._seed, "blocks", epoch))
            sizes = np.minimum(self._block_rows, self._num_rows - order * self._block_rows)
            self._blocks = (epoch, order, np.cumsum(sizes) - sizes)
        return self._blocks[1:]

    def _window(self, epoch: int, window: int) -> NDArray[np.int64]:
        key = (epoch, window)
        if key not in self._windows:
            order, _ = self._block_order(epoch)
            blocks = order[window * self._window_blocks : (window + 1) * self._window_blocks]
            rows = (blocks[:, None] * self._block_rows + np.arange(self._block_rows)).reshape(-1)
            rows = rows[rows < self._num_rows]
            seed = derive_seed(self._seed, "window", epoch, window)
            self._windows[key] = rows[_permutation(len(rows), seed)]
            while len(self._windows) > _CACHED_WINDOWS:
                self._windows.popitem(last=False)
        return self._windows[key]


def _permutation(size: int, seed: int) -> NDArray[np.int64]:
    keys = mix_bits(torch.arange(size) + seed)
    order: NDArray[np.int64] = torch.argsort(keys, stable=True).numpy()
    return order
