"""Draws from a softmax over many items, beside the ways a user would write them.

The bare product of queries and items is a lower bound for any method that scores every item. Naive
Gumbel-Max and softmax with `torch.multinomial` hold all scores in memory; on a GPU, Gumbel-Max is
also compiled by `torch.compile`. `sample` is the call of a
negative cache for one batch: draws that exclude each query's positive, with the keys, ages,
features and embeddings of the drawn items. On a GPU the product is bfloat16 and writes its B × N
results to memory; on the CPU it is float32, in the chunks of our pass, so that its results stay in
the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor

from outsize.bench.runner import Benchmark
from outsize.bench.timing import extra_bytes, time_in_turns
from outsize.kernels.softmax.draws import ScoredItems, draw_from_softmax, softmax_mean
from outsize.kernels.softmax.logit_tiles import as_factors, items_of_a_tile
from outsize.negatives import NegativeCache
from outsize.negatives.cache.draw import Draw
from outsize.negatives.cache.precision import PRECISIONS

ABOUT = "time and memory of draws from a softmax over many items, beside the bare product"
_BETA = 20.0
_NAMES = (
    "product",
    "Gumbel-Max",
    "compiled Gumbel-Max",
    "multinomial",
    "1 draw",
    "16 draws",
    "sample, 1 draw",
    "sample, 16 draws",
    "mean",
)
# They take many times as long as the rest, so fewer calls of them are timed.
_PEERS = ("Gumbel-Max", "compiled Gumbel-Max", "multinomial")
# Queries, items, dim.
_CUDA_SIZES = (
    (64, 1 << 20, 768),
    (256, 1 << 20, 768),
    (1024, 1 << 20, 768),
    (1024, 1 << 22, 128),
)
_CPU_SIZES = (
    (64, 1 << 14, 64),
    (64, 1 << 16, 64),
    (64, 1 << 18, 64),
    (8, 1 << 16, 64),
    (512, 1 << 16, 64),
    (64, 1 << 16, 384),
)
_QUICK_SIZES = ((8, 1 << 10, 16),)
_NUMS = (1, 4, 16, 64, 256)
_CUDA_NUMS_OF_ITEMS = (1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21)
_CPU_NUMS_OF_ITEMS = (1 << 14, 1 << 16, 1 << 18)
_QUICK_NUMS_OF_ITEMS = (1 << 9, 1 << 10)


@dataclass(frozen=True)
class Workload:
    """Queries times the inverse temperature, their positives, and unit vectors in a cache."""

    queries: Float32[Tensor, "num_queries dim"]
    positives: Int64[Tensor, " num_queries"]
    cache: NegativeCache
    items: ScoredItems
    generator: torch.Generator


def workload(
    num_queries: int, num_items: int, dim: int, dtype: torch.dtype, device: str | None = None
) -> Workload:
    """Random queries and items; by default on the GPU if there is one."""
    device = device or _default_device()
    generator = torch.Generator(device).manual_seed(0)
    random = partial(torch.randn, device=device, generator=generator)
    queries = _BETA * F.normalize(random(num_queries, dim))
    positives = torch.randint(num_items, (num_queries,), device=device, generator=generator)
    precision = next(name for name, kept_as in PRECISIONS.items() if kept_as == dtype)
    cache = NegativeCache(num_items, dim, {"id": ((), torch.int64)}, precision).to(device)
    for keys in torch.arange(num_items, device=device).split(1 << 18):
        cache.push({"id": keys}, F.normalize(random(len(keys), dim)), keys)
    return Workload(queries, positives, cache, cache.scored(), generator)


def _default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def run(quick: bool, say: Callable[[str], None], device: str | None = None) -> dict[str, Any]:
    """Time every method in turns; a minute on a GPU, a few on two cores."""
    device = device or _default_device()
    on_cuda = device == "cuda"
    sizes = _QUICK_SIZES if quick else _CUDA_SIZES if on_cuda else _CPU_SIZES
    dtypes = (torch.bfloat16, torch.int8) if on_cuda else (torch.float32, torch.int8)
    # Many calls per round on a GPU: the launch of the first is not hidden behind others.
    rounds, calls = (2, 1) if quick else (5, 20) if on_cuda else (7, 1)
    results: dict[str, Any] = {"sizes": [], "nums": []}
    for size in sizes:
        for dtype in dtypes:
            say("{:,} queries, {:,} items of dim {}, {}".format(*size, _name(dtype)))
            load = workload(*size, dtype, device)
            ways = ways_to_draw(load)
            peers = {name: way for name, way in ways.items() if name in _PEERS}
            ours = {name: way for name, way in ways.items() if name not in _PEERS}
            timings = time_in_turns(ours, rounds=rounds, calls=calls)
            timings |= time_in_turns(peers, rounds=min(3, rounds), calls=min(3, calls), warmup=1)
            row = {name: asdict(timings[name]) for name in ways}
            if on_cuda:
                for name, way in ways.items():
                    row[name]["extra_bytes"] = extra_bytes(way)
            results["sizes"].append({"size": size, "dtype": _name(dtype), "ways": row})
    if on_cuda:
        results["million_bytes"] = extra_bytes(_million_items)
    size = sizes[min(2 if on_cuda else 1, len(sizes) - 1)]
    say("{:,} queries, {:,} items of dim {}, more and more draws".format(*size))
    load = workload(*size, dtypes[0], device)
    nums = {str(num): partial(_draw, load, num) for num in _NUMS}
    timings = time_in_turns(nums, rounds=rounds, calls=calls)
    draws = {num: asdict(timing) for num, timing in timings.items()}
    results["nums"].append({"size": size, "dtype": _name(dtypes[0]), "draws": draws})
    del load, nums
    queries, _, dim = sizes[min(1 if on_cuda else 0, len(sizes) - 1)]
    say(f"{queries:,} queries, more and more items of dim {dim}")
    counts = _CUDA_NUMS_OF_ITEMS if on_cuda else _CPU_NUMS_OF_ITEMS
    growth = []
    for num_items in _QUICK_NUMS_OF_ITEMS if quick else counts:
        load = workload(queries, num_items, dim, dtypes[0], device)
        ways = {"product": partial(_product, load), "sample, 1 draw": partial(_sample, load, 1)}
        timings = time_in_turns(ways, rounds=rounds, calls=calls)
        growth.append({"items": num_items, **{n: asdict(t) for n, t in timings.items()}})
    results["growth"] = {"queries": queries, "dim": dim, "rows": growth}
    return results


def ways_to_draw(load: Workload) -> dict[str, Callable[[], object]]:
    """Name → what is timed; one draw per query unless the name says otherwise."""
    log_partition = _draw(load, 0)
    mean = partial(softmax_mean, load.queries, load.items, log_partition)
    ways = (
        partial(_product, load),
        partial(_gumbel_max, load),
        _compiled_gumbel_max(load),
        partial(_multinomial, load),
        partial(_draw, load, 1),
        partial(_draw, load, 16),
        partial(_sample, load, 1),
        partial(_sample, load, 16),
        mean,
    )
    return {name: way for name, way in zip(_NAMES, ways, strict=True) if way is not None}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"Unit vectors, inverse temperature {_BETA:g}; medians of rounds taken in turns, as "
        "milliseconds (and multiples of the product).\n",
        f"| queries | items | dim | dtype | {' | '.join(_NAMES)} |",
        "|--:|--:|--:|--|" + "--:|" * len(_NAMES),
    ]
    for row in results["sizes"]:
        floor = row["ways"]["product"]["median_s"]
        cells = [
            _cell(row["ways"][name]["median_s"], floor) if name in row["ways"] else "–"
            for name in _NAMES
        ]
        lines.append(_line(row["size"], row["dtype"], cells))
    if "extra_bytes" in results["sizes"][0]["ways"]["product"]:
        lines += ["\nPeak memory beyond queries and items, in MB.\n", *lines[1:3]]
        for row in results["sizes"]:
            cells = [
                f"{row['ways'][name]['extra_bytes'] / 1e6:,.0f}" if name in row["ways"] else "–"
                for name in _NAMES
            ]
            lines.append(_line(row["size"], row["dtype"], cells))
    if "million_bytes" in results:
        lines.append(
            "\nA cache of 1,000,000 items of dim 768 in bfloat16, with 128 int32 tokens each, takes"
            f" {results['million_bytes'] / 1e9:.2f} GB."
        )
    for row in results["nums"]:
        queries, items, dim = row["size"]
        lines.append(f"\nDraws per query, {queries:,} queries, {items:,} items of dim {dim}.\n")
        lines += [f"| {' | '.join(row['draws'])} |", "|" + "--:|" * len(row["draws"])]
        cells = [f"{timing['median_s'] * 1e3:.2f}" for timing in row["draws"].values()]
        lines.append(f"| {' | '.join(cells)} |")
    if "growth" in results:
        lines += _growth_lines(results["growth"])
    return "\n".join(lines) + "\n"


def _growth_lines(growth: dict[str, Any]) -> list[str]:
    """Times by number of items."""
    lines = [
        f"\nItems, {growth['queries']:,} queries, dim {growth['dim']}; one draw of `sample`, in "
        "milliseconds (and multiples of the product).\n",
        "| items | product | sample, 1 draw |",
        "|--:|--:|--:|",
    ]
    for row in growth["rows"]:
        floor, taken = row["product"]["median_s"], row["sample, 1 draw"]["median_s"]
        lines.append(f"| {row['items']:,} | {floor * 1e3:.2f} | {_cell(taken, floor)} |")
    return lines


def _draw(load: Workload, num: int) -> Float32[Tensor, " num_queries"]:
    return draw_from_softmax(load.queries, load.items, num, load.generator).log_partition


def _sample(load: Workload, num: int) -> Draw:
    return load.cache.sample(load.queries, num, exclude=load.positives)


def _product(load: Workload) -> None:
    """Every score once, by torch's matrix product; int8 items are converted to bfloat16."""
    if load.queries.is_cuda:
        load.queries.bfloat16() @ as_factors(load.items.vectors).t()
        return
    for some in load.items.vectors.split(items_of_a_tile(*load.queries.shape, on_cuda=False)):
        load.queries @ some.float().t()


def _scores(load: Workload) -> Float32[Tensor, "num_queries num_items"]:
    factors = as_factors(load.items.vectors)
    scores = (load.queries.to(factors.dtype) @ factors.t()).float()
    return scores if load.items.scales is None else scores.mul_(load.items.scales)


def _gumbel_max(load: Workload) -> Int64[Tensor, " num_queries"]:
    scores = _scores(load)
    noise = torch.empty_like(scores).exponential_(generator=load.generator)
    return scores.sub_(noise.log_()).argmax(dim=1)


def _compiled_gumbel_max(load: Workload) -> Callable[[], object] | None:
    """`_gumbel_max` by `torch.compile`; `None` for what it is not timed for."""
    if load.items.vectors.dtype != torch.bfloat16 or not load.queries.is_cuda:
        return None

    def draw(queries: Tensor, vectors: Tensor) -> Tensor:
        scores = (queries.bfloat16() @ vectors.t()).float()
        return (scores - (-torch.rand_like(scores).log()).log()).argmax(dim=1)

    return partial(torch.compile(draw), load.queries, load.items.vectors)


def _multinomial(load: Workload) -> Int64[Tensor, "num_queries 1"]:
    return torch.multinomial(_scores(load).softmax(dim=1), 1, generator=load.generator)


def _million_items() -> None:
    """A cache of texts: a million embeddings of dim 768 in bfloat16, 128 tokens each."""
    features = {"input_ids": ((128,), torch.int32)}
    NegativeCache(1_000_000, 768, features, precision="bfloat16").cuda()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cell(seconds: float, floor: float) -> str:
    return f"{seconds * 1e3:.2f} ({seconds / floor:.2f})"


def _line(size: Sequence[int], dtype: str, cells: list[str]) -> str:
    queries, items, dim = size
    return f"| {queries:,} | {items:,} | {dim} | {dtype} | {' | '.join(cells)} |"


BENCHMARK = Benchmark(
    "negative-sampling", "outsize bench negative-sampling", ABOUT, run, table, run_on=run
)
