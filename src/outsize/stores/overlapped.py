"""Exchanges that run while a step computes: the rows of the next batch are read one batch ahead.

HET prefetches so: batch t + 1 is read while batch t computes. All operations on the wrapped store
run on one thread, in the order in which they were called. Of step t these are:

1. `prefetch(ids of batch t + 1)` starts round t + 1, which pushes the updates of step t − 1;
2. `checkout(ids of batch t)` waits for round t, which step t − 1 started;
3. forward and backward pass, while round t + 1 runs;
4. `submit(update of step t)`, which follows round t + 1 and waits for nothing.

So the order of pushes and reads is the same on every rank and in every run, whichever thread is
faster: the result is deterministic.

What a read may miss, besides what the wrapped store lets it miss: the updates of the last step, of
this rank and of every other. Rows that were read are not changed by updates that come later, not
even by those of their own rank. Over a `ShardedStore` a read hence misses exactly the updates of
the last step, so N ranks with a batch of B still train as one process with a batch of N·B. Over a
`CachedStore` it misses at most s_r + (N - 1)·(s_w + 1) updates of others, and one of its own.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.contracts import RowCounts, RowReply, RowStore, RowUpdate, TablePart
from outsize.errors import ConfigError, DataError
from outsize.kernels.rows.updates import UpdateRule
from outsize.spec import MemoryUse
from outsize.stores.call_thread import CallThread
from outsize.stores.wrapper import StoreWrapper


@dataclass
class _Read:
    """Rows that are read ahead.

    Attributes:
        ids: Which ones.
        reply: What the wrapped store answers; `None` if it has to be asked again.
    """

    ids: Int64[Tensor, " n"]
    reply: Future[RowReply] | None


class OverlappedStore(StoreWrapper):
    """Wraps a store that ranks share, and reads the rows of the next batch while this one computes.

    Call `prefetch` (or `EmbeddingCollection.prefetch`) with the batch after the next one to be
    read, on all ranks; the first batch is prefetched by itself. Batches are then read in the order
    in which they were prefetched. A batch that was not prefetched is read at once, and nothing
    overlaps.

    A read misses the updates of the step before it, this rank's own included, besides what the
    wrapped store lets it miss: see the module docstring. Gradient accumulation, skipped steps,
    every row optimizer and every wire format work as without it.

    `flush` is complete, as always, and rows that were read ahead of it are read again. So a run
    that is resumed from a checkpoint equals the uninterrupted one. Evaluation reads include all
    updates, and change nothing. Both wait for the exchange that runs.

    If an exchange fails on any rank, all raise: in the step whose rows it was to bring, or in the
    next operation that waits.

    Exchanges get a process group of their own, so that those of DDP may run meanwhile: all ranks
    make the store together. Rows are on the CPU.

    Args:
        inner: A `ShardedStore`, or a `CachedStore` in front of one.
    """

    reads_ahead = True

    def __init__(self, inner: RowStore) -> None:
        super().__init__(inner)
        if not inner.is_shared or inner.is_asynchronous:
            why = (
                "its ranks train at their own pace, without waiting"
                if inner.is_asynchronous
                else "its rows are at hand"
            )
            raise ConfigError(
                f"there is no exchange to overlap in a {type(inner).__name__}: {why}. Wrap a "
                "ShardedStore, or a CachedStore in front of one"
            )
        self._require_cpu(inner._device())
        inner.use_own_group()
        self._calls = CallThread("outsize-exchange")
        weakref.finalize(self, self._calls.stop, waits=False)
        self._ahead: deque[_Read] = deque()
        self._has_failed = False
        self._wait_s = 0.0
        self.rule = inner.rule
        for hook in (self.register_state_dict_pre_hook, self.register_load_state_dict_pre_hook):
            hook(lambda module, *unused: module.wait())

    def wait(self) -> None:
        """Wait until everything that was started is done; raises what failed."""
        self._calls.run(lambda: None)

    def prefetch(self, ids: Int64[Tensor, " n"]) -> None:
        """Start to read the rows of a later `checkout`, after those of earlier calls."""
        self._read_again()
        self._start_read(ids)

    def fail_ahead(self, error: Exception) -> None:  # noqa: D102
        self._has_failed = True

        def announce() -> RowReply:
            self.inner.fail()
            raise error

        self._read_again()
        self._ahead.append(_Read(self._no_ids(), self._calls.start(announce)))

    def checkout(self, ids: Int64[Tensor, " n"]) -> tuple[Float[Tensor, "_ _"], ...]:
        """Rows for training, as they were prefetched; waits until they are here."""
        self._read_again()
        if not self._ahead:
            self._start_read(ids)
        read = self._ahead.popleft()
        assert read.reply is not None, "it was started above"
        started = time.perf_counter()
        reply = read.reply.result()
        self._wait_s += time.perf_counter() - started
        if not torch.equal(read.ids, ids):
            raise DataError(
                f"a step reads {ids.shape[0]} distinct rows that are not the {read.ids.shape[0]} "
                "that were prefetched for it: prefetch whole batches, in the order in which they "
                "are read"
            )
        return self._leaves(reply.rows, ids)

    def exchange(  # noqa: D102
        self,
        update: RowUpdate | None,
        ids: Int64[Tensor, " n"],
        clocks: Int64[Tensor, " n"] | None = None,
    ) -> RowReply:
        return self._calls.run(lambda: self.inner.exchange(update, ids, clocks))

    def submit(self, update: RowUpdate | None) -> None:
        """Submit the update of one step; it is applied after the exchange that runs."""
        if update is not None and update.ids.numel():
            self._require_rule()
        self._calls.start(lambda: self.inner.submit(update))

    def bind(self, rule: UpdateRule) -> None:
        """Apply updates by this rule from now on: those submitted later, not those before."""
        known = self.rule
        if type(rule) is not type(known) or rule.state_widths(2) != known.state_widths(2):
            self._calls.run(lambda: self.inner.bind(rule))
            self.rule = self.inner.rule
            return
        self._calls.start(lambda: self.inner.bind(rule))
        self.rule = rule

    def flush(self) -> None:
        """Apply all updates; rows that were read ahead are read again before their use."""
        self._calls.run(self.inner.flush)
        for read in self._ahead:
            read.reply = None

    def preview(  # noqa: D102
        self, update: RowUpdate | None, ids: Int64[Tensor, " n"]
    ) -> tuple[Float[Tensor, "_ _"], ...]:
        return self._calls.run(lambda: self.inner.preview(update, ids))

    def any_rank(self, flag: bool) -> bool:  # noqa: D102
        return self._calls.run(lambda: self.inner.any_rank(flag))

    def fail(self) -> None:  # noqa: D102
        if not self._has_failed:
            self._has_failed = True
            self._calls.start(self.inner.fail).exception()  # it raises if all have failed already

    def close(self) -> None:  # noqa: D102
        self._calls.stop(waits=True)
        self.inner.close()

    def leave(self) -> None:  # noqa: D102
        self._calls.stop(waits=False)
        self.inner.leave()

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self._calls.run(self.inner.parts)

    def rank_state(self) -> dict[str, Tensor]:  # noqa: D102
        return self._calls.run(self.inner.rank_state)

    def fits_rank_state(self, state: Mapping[str, Tensor]) -> bool:  # noqa: D102
        return self._calls.run(lambda: self.inner.fits_rank_state(state))

    def load_rank_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: D102
        self._calls.run(lambda: self.inner.load_rank_state(state))

    def memory_by_table(self) -> dict[str, MemoryUse]:  # noqa: D102
        return self._calls.run(self.inner.memory_by_table)

    def memory_use(self) -> MemoryUse:  # noqa: D102
        return self._calls.run(self.inner.memory_use)

    def take_counts(self) -> RowCounts | None:
        """Counts of the wrapped store, with the seconds that steps have waited for it."""
        counts = self._calls.run(self.inner.take_counts)
        waited, self._wait_s = self._wait_s, 0.0
        return None if counts is None else replace(counts, wait_s=waited)

    def _start_read(self, ids: Int64[Tensor, " n"]) -> None:
        self._ahead.append(_Read(ids, None))
        self._read_again()

    def _read_again(self) -> None:
        """Start the reads that have not begun since they were asked for, or since a flush."""
        for read in self._ahead:
            if read.reply is None:
                read.reply = self._calls.start(self._reading(read.ids))

    def _reading(self, ids: Int64[Tensor, " n"]) -> Callable[[], RowReply]:
        return lambda: self.inner.exchange(None, ids)

    def _require_cpu(self, device: torch.device) -> None:
        if device.type != "cpu":
            raise ConfigError(
                f"exchanges overlap with the computation for rows on the CPU, not on {device}: "
                "leave out the OverlappedStore (embeddings.overlap), or train on the CPU"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RowStore:
        self._require_cpu(fn(torch.empty(0)).device)
        self.wait()
        return super()._apply(fn, recurse)
