"""The base of stores that wrap another store."""

from __future__ import annotations

from outsize.contracts import RowStore, TablePart
from outsize.spec import MemoryUse


class StoreWrapper(RowStore):
    """A store that wraps another; what a subclass does not change is passed on."""

    def __init__(self, inner: RowStore) -> None:
        super().__init__(inner.layout.specs, inner.seed)
        self.inner = inner
        self.transport = inner.transport
        self.is_shared, self.is_asynchronous = inner.is_shared, inner.is_asynchronous

    @property
    def num_workers(self) -> int:  # noqa: D102
        return self.inner.num_workers

    def any_rank(self, flag: bool) -> bool:  # noqa: D102
        return self.inner.any_rank(flag)

    def fail(self) -> None:  # noqa: D102
        self.inner.fail()

    def use_own_group(self) -> None:  # noqa: D102
        self.inner.use_own_group()

    def close(self) -> None:  # noqa: D102
        self.inner.close()

    def leave(self) -> None:  # noqa: D102
        self.inner.leave()

    def parts(self) -> list[TablePart]:  # noqa: D102
        return self.inner.parts()

    def saves_parts(self) -> bool:  # noqa: D102
        return self.inner.saves_parts()

    def memory_by_table(self) -> dict[str, MemoryUse]:  # noqa: D102
        return self.inner.memory_by_table()
