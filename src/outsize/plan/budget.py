"""How to fit a run into a memory budget: shard rows, cache copies, or compress tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from outsize.errors import BudgetError, ConfigError
from outsize.plan.counted_memory import trained_tables
from outsize.plan.peak import table_bytes
from outsize.plan.plan import Plan
from outsize.plan.planning import Planner
from outsize.plan.simulation import simulate
from outsize.training.config import RunConfig
from outsize.training.store_config import CacheConfig, StoreConfig
from outsize.training.strict_toml import encode, to_toml
from outsize.training.tables_config import TablesConfig

_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kKMGTP]?)(i?)[bB]?\s*")
_UNITS = "kMGTP"
_METHOD = "cce"  # the best of all methods at most budgets: see docs/compare.md
_TWIN_SLOTS, _TWIN_STEPS = 4096, 2
_LEAST_SHARE = 0.001
_LARGEST_SHARE = 0.5
_SPARE = 0.97  # of what is left, for the cache
_BISECTIONS = 4


@dataclass(frozen=True)
class Way:
    """One way to fit a run.

    Attributes:
        title: What changes, in words.
        config: The run, changed so.
        plan: What it takes then.
    """

    title: str
    config: RunConfig
    plan: Plan

    @property
    def lines(self) -> str:
        """The section of embeddings, for the run file."""
        return to_toml({"embeddings": encode(self.config)["embeddings"]}).strip()

    def summary(self) -> dict[str, Any]:
        """The way as plain values, for JSON."""
        traffic = self.plan.traffic
        return {
            "title": self.title,
            "peak_bytes": peak_of(self.plan),
            "bytes_per_step_and_rank": None if traffic is None else traffic.bytes_per_step,
            "hit_rate": None if traffic is None else traffic.hit_rate,
            "embeddings": encode(self.config)["embeddings"],
            "lines": self.lines,
        }


def read_size(text: str) -> int:
    """Bytes of a size such as "2GB", "1.5 GiB" or "800000"."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size of memory: write it as 2GB, 512MB or 1.5GiB")
    number, unit, binary = match.groups()
    power = _UNITS.index(unit.replace("K", "k")) + 1 if unit else 0
    size = int(float(number.replace("_", "")) * (1024 if binary else 1000) ** power)
    if size < 1:
        raise ConfigError(f"{text!r} of memory holds nothing: give a budget such as 2GB")
    return size


def ways_to_fit(planner: Planner, plan: Plan) -> list[Way]:
    """Ways in which a run stays within the planner's limit, the one that changes least first.

    Rows are sharded if there are ranks to shard them over, and what memory is left goes to a
    cache. Tables are compressed to the largest cap that fits.

    Args:
        planner: Has read the run's data.
        plan: The plan of the run as it is.
    """
    found: list[Way] = []
    for way in (*_sharded(planner), *_compressed(planner, plan)):
        if way.plan.fits and way.config != planner.config:
            found.append(way)
    if plan.fits:
        found.insert(0, Way("as it is", planner.config, plan))
    return found


def peak_of(plan: Plan) -> int:
    """The memory of a rank that has a limit: of its accelerator, or main memory."""
    return (plan.device_peak or plan.peak).total


def _sharded(planner: Planner) -> Iterator[Way]:
    """Rows sharded over the ranks, without a cache and with the largest that fits."""
    if planner.num_ranks == 1 or planner.config.is_asynchronous:
        return
    wanted = planner.config.embeddings
    if not isinstance(wanted, StoreConfig):
        wanted = StoreConfig(wanted.dim, init_std=wanted.init_std)
    wanted = replace(wanted, store="sharded")
    bare = replace(wanted, cache=replace(wanted.cache, share=0.0))
    plan, config = _planned(planner, bare)
    yield Way("rows sharded over the ranks, without a cache", config, plan)
    share = _largest_share(planner, wanted, plan)
    if share < _LEAST_SHARE:
        return
    caches = {"with the bounds of the run": replace(wanted.cache, share=share)}
    if wanted.optimizer.kind != "adam":
        default = CacheConfig()
        bounds = (default.read_staleness, default.write_staleness)
        if (wanted.cache.read_staleness, wanted.cache.write_staleness) != bounds:
            caches["with the default bounds"] = replace(
                wanted.cache, share=share, read_staleness=bounds[0], write_staleness=bounds[1]
            )
    for words, cache in caches.items():
        plan, config = _planned(planner, replace(wanted, cache=cache))
        yield Way(f"rows sharded, a cache of {share:.3g} of them {words}", config, plan)


def _largest_share(planner: Planner, wanted: StoreConfig, bare: Plan) -> float:
    """The largest cache for which there is memory, rounded down to two digits."""
    assert planner.limit_bytes is not None
    left = _SPARE * (planner.limit_bytes - peak_of(bare))
    num_rows = sum(spec.num_rows for spec in planner.specs)
    share = min(_LARGEST_SHARE, left / (slot_bytes(wanted) * num_rows))
    if share <= 0:
        return 0.0
    digits = 10.0 ** (1 - math.floor(math.log10(share)))
    return math.floor(share * digits + 1e-9) / digits


def slot_bytes(config: StoreConfig) -> float:
    """Bytes per slot of a full cache, measured on a small one."""
    num, nothing = _TWIN_SLOTS, torch.empty(0, dtype=torch.int64)
    steps = [torch.arange(num * step, num * (step + 1)) for step in range(_TWIN_STEPS)]
    reads = [[[2 * ids + 1], [nothing]] for ids in steps]  # rows of the other rank
    found = simulate(config, reads, _TWIN_SLOTS, [_TWIN_STEPS])
    return found.cache_bytes[0] / _TWIN_SLOTS


def _compressed(planner: Planner, as_it_is: Plan) -> Iterator[Way]:
    """Tables by the largest cap that fits."""
    wanted = planner.config.embeddings
    if planner.config.is_asynchronous:
        return
    if isinstance(wanted, TablesConfig) and wanted.method != "full":
        method, base = wanted.method, replace(wanted, max_bytes=None)
    else:
        method = _METHOD
        rate = wanted.learning_rate if isinstance(wanted, TablesConfig) else None
        base = TablesConfig(wanted.dim, init_std=wanted.init_std, learning_rate=rate)
    most = max(spec.num_rows * spec.dim for spec in planner.specs)
    cap = _largest_cap(planner, as_it_is, replace(base, method=method, max_params=most))
    if cap is not None:
        plan, config = _planned(planner, replace(base, method=method, max_params=cap))
        words = f"{method} tables of at most {cap:,} parameters each"
        yield Way(words, config, plan)


def _largest_cap(planner: Planner, as_it_is: Plan, largest: TablesConfig) -> int | None:
    """The largest cap with which the run fits; `None` if there is none.

    Args:
        planner: Has read the run's data.
        as_it_is: The plan of the run, for what it takes besides embeddings.
        largest: The tables with the largest cap that makes sense.
    """
    limit = planner.limit_bytes
    assert limit is not None
    assert largest.max_params is not None
    features = planner.task.embeddings.features
    peak = as_it_is.device_peak or as_it_is.peak

    def fits(cap: int) -> bool:
        config = replace(planner.config, embeddings=replace(largest, max_params=cap))
        try:
            tables = trained_tables(config, features, planner.specs)
        except BudgetError:
            return False
        size = table_bytes(config, tables, planner.num_ranks)
        return peak.process + peak.dense + size <= limit

    low = high = largest.max_params
    while low and not fits(low):
        low, high = low // 2, low
    if not low:
        return None
    for _ in range(_BISECTIONS):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _planned(planner: Planner, embeddings: StoreConfig | TablesConfig) -> tuple[Plan, RunConfig]:
    config = replace(planner.config, embeddings=embeddings)
    return planner.plan(config), config
