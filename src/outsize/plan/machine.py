"""The machine that a run is planned for: its link and its speed beside that of this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from outsize.kernels.threads import torch_threads
from outsize.plan.calibration import Calibration, Together
from outsize.plan.reference import dense_reference, median_s, rows_reference
from outsize.plan.step_time import Link, calibrated_link


@dataclass(frozen=True)
class Machine:
    """What is known about the machines of a run.

    Attributes:
        link: The link between machines of one rank each; `None` if one machine has all ranks.
        calibration: Their speed; `None` if it is that of this machine now.
    """

    link: Link | None = None
    calibration: Calibration | None = None

    @property
    def is_known(self) -> bool:
        """Whether the time of a step can be predicted."""
        return self.link is not None or self.calibration is not None

    def full_link(self, num_ranks: int) -> Link:
        """The link of so many ranks, with what software adds to it where that was measured."""
        if self.calibration is not None:
            return calibrated_link(self.link, self.calibration, num_ranks)
        assert self.link is not None
        return self.link

    def busy(self, num_ranks: int) -> Together | None:
        """How the ranks slow each other down, if one machine has them all and it was measured."""
        if self.calibration is None or self.link is not None or num_ranks == 1:
            return None
        return self.calibration.of_ranks(num_ranks)


class Pace:
    """How long work takes on the machine of a run, from how long it takes here.

    The reference step is timed before and after the work, and beside the calibration's.

    Args:
        machine: The machine of the run.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.dense, self.rows = 1.0, 1.0

    def of_dense(self) -> AbstractContextManager[None]:
        """Time the dense reference around a block; sets `dense`."""
        return self._timed("dense", dense_reference)

    def of_rows(self) -> AbstractContextManager[None]:
        """Time the rows reference around a block; sets `rows`."""
        return self._timed("rows", rows_reference)

    @contextmanager
    def _timed(self, part: str, make: Callable[[], Callable[[], None]]) -> Iterator[None]:
        known = self._machine.calibration
        if known is None:
            yield
            return
        step = make()
        with torch_threads(known.threads):
            before = median_s(step)
            yield
            after = median_s(step)
        setattr(self, part, getattr(known, f"{part}_s") / ((before + after) / 2))
