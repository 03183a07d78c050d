"""Reference steps, by which two machines, or two moments of one, are compared.

A plan times the steps of its own run here and now. The calibration says how long a reference step
takes where the run will be. So a plan also times the reference, and scales by the ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from outsize.contracts import RowUpdate
from outsize.optimizers import RowAdagrad
from outsize.spec import TableSpec
from outsize.stores import LocalStore

WIDTH = 384
_BATCH, _LAYERS = 512, 3
_NUM_ROWS, _DIM, _READS = 400_000, 16, 8_000
_ROUNDS, _WARMUP = 11, 3
_OTHER_NUMBERS = 1 << 20


def step_clock(device: torch.device | str = "cpu") -> Callable[[], float]:
    """The clock of a step: processor time of one thread, else the time of day.

    Processor time leaves out what other processes take of a busy machine.
    """
    is_alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if is_alone else time.perf_counter


def median_s(
    step: Callable[[], object],
    rounds: int = _ROUNDS,
    warmup: int = _WARMUP,
    clock: Callable[[], float] | None = None,
) -> float:
    """The median of a step's seconds, by `step_clock()` unless another clock is given."""
    clock, seconds = clock or step_clock(), []
    for _ in range(warmup):
        step()
    for _ in range(rounds):
        started = clock()
        step()
        seconds.append(clock() - started)
    return statistics.median(seconds)


def fill_cache() -> None:
    """Write other memory, as the dense weights of a step do before its rows are read.

    It is a few times as large as the cache of a core.
    """
    torch.empty(_OTHER_NUMBERS, dtype=torch.int64).fill_(1)


def dense_model(width: int = WIDTH) -> nn.Module:
    """The model of the dense reference step, or a narrower one."""
    layers: list[nn.Module] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def dense_reference(model: nn.Module | None = None, width: int = WIDTH) -> Callable[[], None]:
    """A step of a small dense model: forward, backward, Adam.

    Args:
        model: The model of the step, such as a wrapped one; by default `dense_model(width)`.
        width: The number of its inputs.
    """
    model = dense_model(width) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    inputs = torch.rand(_BATCH, width, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def rows_reference() -> Callable[[], None]:
    """A step of a local store: rows are read and updated, as many as a batch of clicks has."""
    store = LocalStore([TableSpec("rows", _NUM_ROWS, _DIM)])
    RowAdagrad(store, 0.01)
    draws = torch.Generator().manual_seed(0)
    ids = torch.randperm(_NUM_ROWS, generator=draws)[:_READS].sort().values
    update = RowUpdate(ids, (torch.randn(_READS, _DIM, generator=draws),), torch.ones_like(ids))

    def step() -> None:
        store.exchange(None, ids)
        store.submit(update)

    return step


def rows_per_s(seconds: float) -> float:
    """Rows read and updated per second, given the seconds of the reference step."""
    return _READS / seconds


def multiply_adds_per_s(seconds: float) -> float:
    """Multiplications of the dense reference step per second, forwards and backwards."""
    return 3 * _BATCH * (_LAYERS * WIDTH + 1) * WIDTH / seconds
