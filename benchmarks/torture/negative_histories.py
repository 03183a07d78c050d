"""Random histories of a negative cache against lists: which row has which key, in which version.

The first number of an embedding is the version of its item, so that a cache shows what was written
last. The lists follow the docstring of `NegativeCache`: empty rows first, then the row with the
oldest stamp, rows of one push in their order; "lru" stamps rows that are written again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.torture.trial import SURVIVED, Trial, require
from outsize.negatives import NegativeCache
from outsize.negatives.cache.draw import HeldItems
from outsize.negatives.cache.item_eviction import ITEM_EVICTION

_DIM = 2
_NO_KEY = -1


class ListedCache:
    """What a cache holds, as lists with an entry per row.

    Args:
        num_items: Capacity in items.
        renews: Whether a row that is written again becomes the newest.
    """

    def __init__(self, num_items: int, renews: bool) -> None:
        self.keys = [_NO_KEY] * num_items
        self.versions = [0] * num_items
        self.stamps = [0] * num_items
        self._renews = renews
        self._num_writes = 0

    def push(self, keys: list[int], versions: list[int]) -> None:
        """Take in items; of one that is there twice, the last counts."""
        self._num_writes += 1
        last = sorted({key: i for i, key in enumerate(keys)}.values())
        known = {keys[i]: self.keys.index(keys[i]) for i in last if keys[i] in self.keys}
        new = [i for i in last if keys[i] not in known][-len(self.keys) :]
        for row in known.values() if self._renews else ():
            self.stamps[row] = self._num_writes
        rows = sorted(range(len(self.keys)), key=lambda row: (self.stamps[row], row))
        for i, row in zip(new, rows, strict=False):
            self.keys[row], self.stamps[row] = keys[i], self._num_writes
            self.versions[row] = versions[i]
        for i in last:
            row = known.get(keys[i], -1)
            if row >= 0 and self.keys[row] == keys[i]:
                self.versions[row] = versions[i]

    def rewrite(self, rows: list[int], keys: list[int], versions: list[int]) -> None:
        """Write rows again that still hold their key."""
        written = {
            row: version
            for row, key, version in zip(rows, keys, versions, strict=True)
            if row >= 0 and self.keys[row] == key
        }
        for row, version in written.items():
            self.versions[row] = version
        if self._renews:
            self._num_writes += 1
            for row in written:
                self.stamps[row] = self._num_writes


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """One history of 100 to 300 steps."""
    draw = trial.draw
    num_items, eviction = draw.choice([1, 3, 20, 100]), draw.choice(sorted(ITEM_EVICTION))
    num_keys, num_steps = draw.choice([2, 30, 300]), draw.randint(100, 300)
    describe(f"{num_items} of {num_keys} items, {eviction}, {num_steps} steps")
    ways = ["push", "push", "draw", "commit", "sweep", "fail", "save"]
    history = History(draw, num_items, eviction, num_keys)
    history.play([draw.choice(ways) for _ in range(num_steps)])
    return SURVIVED, ""


class History:
    """A cache and its lists, changed together.

    Args:
        draw: Draws keys.
        num_items: Capacity in items.
        eviction: The eviction policy.
        num_keys: How many items there are.
    """

    def __init__(self, draw: random.Random, num_items: int, eviction: str, num_keys: int) -> None:
        self._draw = draw
        self._num_keys = num_keys
        self._version = 0
        self._drawn: HeldItems | None = None
        self._make = lambda: NegativeCache(
            num_items, _DIM, {"id": ((), torch.int64)}, precision="float32", eviction=eviction
        )
        self.cache = self._make()
        self.lists = ListedCache(num_items, ITEM_EVICTION[eviction].renews)

    def play(self, steps: list[str]) -> None:
        """Do one thing after the other, and compare after each."""
        for what in steps:
            getattr(self, what)()
            self.require_equal(what)

    def push(self) -> None:
        """Push items, some of them twice."""
        keys, versions = self._items()
        report = self.cache.push({"id": keys}, self._embeddings(versions), keys)
        total = report.num_new + report.num_known + report.num_repeated
        require(total == len(keys), f"a push of {len(keys)} items reports {total}")
        self.lists.push(keys.tolist(), versions)

    def draw(self) -> None:
        """Draw items, to be written back later, when some of them may have given way."""
        if self.cache.num_held:
            found = self.cache.sample(torch.zeros(2, _DIM), num=3, beta=1.0)
            self._drawn = found.items()

    def commit(self) -> None:
        """Write back what was drawn earlier, or items by their keys."""
        if self._drawn is not None:
            items, self._drawn = self._drawn, None
            versions = self._versions(len(items.keys))
            self.cache.rewrite(items, self._embeddings(versions))
            self.lists.rewrite(items.rows.tolist(), items.keys.tolist(), versions)
            return
        keys, versions = self._items()
        self.cache.commit(keys=keys, embeddings=self._embeddings(versions))
        rows = [self.lists.keys.index(k) if k in self.lists.keys else -1 for k in keys.tolist()]
        self.lists.rewrite(rows, keys.tolist(), versions)

    def sweep(self) -> None:
        """Write the oldest items again."""
        items = self.cache.oldest(self._draw.randrange(1, 5))
        versions = self._versions(len(items.keys))
        self.cache.rewrite(items, self._embeddings(versions))
        self.lists.rewrite(items.rows.tolist(), items.keys.tolist(), versions)

    def fail(self) -> None:
        """What fails inside `all_or_nothing` leaves nothing behind."""
        keys, versions = self._items()
        try:
            with self.cache.all_or_nothing():
                self.cache.push({"id": keys}, self._embeddings(versions), keys)
                self.cache.commit(keys=keys, embeddings=self._embeddings(versions))
                raise KeyError("as if an encoder had failed")
        except KeyError:
            return

    def save(self) -> None:
        """Go on with a cache that has loaded the state of this one."""
        other = self._make()
        other.load_state_dict(self.cache.state_dict())
        self.cache = other

    def require_equal(self, what: str) -> None:
        """Fail the trial unless each row holds the key and the version that it should."""
        require(self.cache.keys.tolist() == self.lists.keys, f"other items are held after {what}")
        for row, (key, version) in enumerate(
            zip(self.lists.keys, self.lists.versions, strict=True)
        ):
            if key != _NO_KEY:
                found = int(self.cache.items.vectors[row, 0])
                require(found == version, f"item {key} has version {found}, not {version}: {what}")
                same = int(self.cache.held(torch.tensor([row])).features["id"]) == key
                require(same, f"item {key} has the features of another after {what}")

    def _items(self) -> tuple[Tensor, list[int]]:
        count = self._draw.choice([0, 1, 3, 12])
        keys = torch.tensor([self._draw.randrange(self._num_keys) for _ in range(count)]).long()
        return keys, self._versions(count)

    def _versions(self, count: int) -> list[int]:
        self._version += count
        return list(range(self._version - count + 1, self._version + 1))

    def _embeddings(self, versions: list[int]) -> Tensor:
        return torch.tensor([[float(version), 1.0] for version in versions]).reshape(-1, _DIM)
