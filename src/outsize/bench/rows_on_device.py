"""Look-up, backward and update of embedding rows on a GPU, beside PyTorch and the bare copies.

One table is read by 26 features, so that PyTorch needs one look-up, too. All variants train tables
of the same shape on the same batches in one process, in turns. A table with dense gradients is no
peer here: its gradient alone is as large as the table.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from outsize.bench.timing import cell, extra_bytes, time_in_turns
from outsize.bench.workloads import scattered_ids, train_rows
from outsize.collection import EmbeddingCollection
from outsize.optimizers import RowAdagrad, RowOptimizer, RowSGD
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import LocalStore

_BATCHES_KEPT = 4  # whose rows do not fit the GPU's cache
_RATE = 0.01
_QUICK = ("fused_adagrad", "fused_sgd", "torch_sgd")

Step = Callable[[], None]


@dataclass(frozen=True)
class Load:
    """One setting.

    Attributes:
        num_rows: Rows of the table.
        dim: Width of a row.
        batch_size: Examples per step.
        num_features: Ids per example.
        skew: Exponent of the Zipf distribution of ids; 0 for uniform ids.
        dtype: The type of rows.
        variants: The variants that are measured; all by default.
    """

    num_rows: int = 10_000_000
    dim: int = 128
    batch_size: int = 65_536
    num_features: int = 26
    skew: float = 1.05
    dtype: str = "float32"
    variants: tuple[str, ...] = ()

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of rows."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def settings(self) -> dict[str, Any]:
        """The numbers of the setting, by name."""
        return {name: value for name, value in asdict(self).items() if name != "variants"}


def run(quick: bool, say: Callable[[str], None], device: str) -> dict[str, Any]:
    """Measure the first setting with all peers, then growth in rows, batch, dim and skew."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's Adagrad warns without
    first = Load()
    if quick:
        first = replace(first, num_rows=1000, batch_size=64, num_features=3, dim=16)
    points = []
    for number, load in enumerate([first, *([] if quick else _growth(first))]):
        say(", ".join(f"{name} {value}" for name, value in load.settings().items()))
        rounds, calls = (3, 1) if quick else (15, 10) if number == 0 else (7, 10)
        points.append(measure_load(load, device, rounds=rounds, calls=calls))
    speedups = {name: value for name, value in points[0].items() if name.startswith("speedup_vs")}
    return {"points": points, **speedups}


def measure_load(load: Load, device: str, *, rounds: int, calls: int) -> dict[str, Any]:
    """Time all variants in turns; and the memory that each takes besides rows and their state."""
    batches, gradient = make_batches(load, device)
    names = load.variants or tuple(_VARIANTS)
    steps = {name: _VARIANTS[name](load, batches, gradient) for name in names}
    timings = time_in_turns(steps, rounds=rounds, calls=calls, warmup=3)
    ratios = {
        f"speedup_vs_torch_{rule}": timings[f"torch_{rule}"].median_s
        / timings[f"fused_{rule}"].median_s
        for rule in ("sgd", "adagrad")
        if f"torch_{rule}" in timings and f"fused_{rule}" in timings
    }
    distinct = [int(torch.unique(ids).numel()) for ids in batches]
    found = {
        **load.settings(),
        "distinct_ids": sum(distinct) / len(distinct),
        "variants": {name: timing.in_ms() for name, timing in timings.items()},
        "extra_bytes": {
            name: extra_bytes(step) if device == "cuda" else 0 for name, step in steps.items()
        },
        **ratios,
    }
    del steps
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return found


def make_batches(load: Load, device: str) -> tuple[list[Tensor], Tensor]:
    """Batches of ids, a line per feature, whose popular ids are scattered, and a gradient."""
    draw = torch.Generator().manual_seed(0)

    def ids() -> Tensor:
        num = load.batch_size * load.num_features
        found = scattered_ids(load.num_rows, num, draw, load.skew)
        return found.view(load.num_features, -1).to(device)

    batches = [ids() for _ in range(_BATCHES_KEPT)]
    shape = (load.batch_size, load.num_features, load.dim)
    draw_on = torch.Generator(device).manual_seed(0)
    gradient = torch.randn(shape, generator=draw_on, device=device)
    return batches, gradient / load.batch_size


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = list(dict.fromkeys(name for point in results["points"] for name in point["variants"]))
    lines = [
        "Milliseconds per step: forward, backward and update of one id per feature and example "
        "(median of rounds taken in turns; p10 to p90 in brackets). All features share one table. "
        "`fused` and `staged` are Outsize, Adagrad row-wise; `gather` is `index_select` alone, "
        "`copy` a copy of as many bytes as the vectors have.\n",
        f"| rows × dim | type | batch | skew | distinct | {' | '.join(names)} |",
        "|---|---|--:|--:|--:|" + "--:|" * len(names),
    ]
    for point in results["points"]:
        cells = [cell(point["variants"].get(name)) for name in names]
        share = point["distinct_ids"] / (point["batch_size"] * point["num_features"])
        lines.append(
            f"| {point['num_rows']:,} × {point['dim']} | {point['dtype']} | "
            f"{point['batch_size']:,} × {point['num_features']} | {point['skew']} | {share:.0%} | "
            f"{' | '.join(cells)} |"
        )
    first = results["points"][0]
    for rule in ("sgd", "adagrad"):
        if f"speedup_vs_torch_{rule}" in first:
            ratio = first[f"speedup_vs_torch_{rule}"]
            lines.append(
                f"\nFirst setting: torch_{rule} takes {ratio:.2f}× as long as ours, fused."
            )
    lines += ["\nMB of a step besides rows and their state:\n", "| variant | MB |", "|---|--:|"]
    lines += [f"| {name} | {size / 1e6:,.0f} |" for name, size in first["extra_bytes"].items()]
    return "\n".join(lines) + "\n"


def _growth(first: Load) -> Iterator[Load]:
    some = replace(first, variants=_QUICK)
    for num_rows in (100_000, 1_000_000):
        yield replace(some, num_rows=num_rows)
    for batch_size in (2048, 16_384):
        yield replace(some, batch_size=batch_size)
    for dim in (16, 64, 256):
        yield replace(some, dim=dim)
    for skew in (0.0, 1.5):
        yield replace(some, skew=skew)
    half = replace(first, num_rows=100_000_000, dim=64, dtype="bfloat16")
    yield replace(half, variants=("fused_adagrad", "staged_adagrad", "gather"))


def _outsize(
    load: Load,
    batches: list[Tensor],
    gradient: Tensor,
    *,
    make: Callable[..., RowOptimizer],
    fused: bool,
) -> Step:
    spec = TableSpec("shared", load.num_rows, load.dim, dtype=load.torch_dtype)
    store = LocalStore([spec], device=gradient.device)
    rows = make(store, _RATE, fused=fused)
    names = [f"feature{i}" for i in range(load.num_features)]
    embeddings = EmbeddingCollection([FeatureSpec(name, table="shared") for name in names], store)
    turn = cycle([dict(zip(names, ids.unbind(0), strict=True)) for ids in batches])
    return partial(train_rows, embeddings, rows, turn, gradient)


def _torch(load: Load, batches: list[Tensor], gradient: Tensor, *, adagrad: bool) -> Step:
    device, dtype = gradient.device, load.torch_dtype
    embedding = nn.Embedding(load.num_rows, load.dim, sparse=True, device=device, dtype=dtype)
    weights = [embedding.weight]
    optimizer: Optimizer = Adagrad(weights, lr=_RATE) if adagrad else SGD(weights, lr=_RATE)
    turn = cycle([ids.t().contiguous() for ids in batches])
    gradient = gradient.to(dtype)

    def step() -> None:
        optimizer.zero_grad()
        embedding(next(turn)).backward(gradient)
        optimizer.step()

    return step


def _gather(load: Load, batches: list[Tensor], gradient: Tensor) -> Step:
    rows = torch.empty(load.num_rows, load.dim, device=gradient.device, dtype=load.torch_dtype)
    turn = cycle([ids.t().flatten() for ids in batches])
    return lambda: _drop(rows.index_select(0, next(turn)))


def _copy(load: Load, batches: list[Tensor], gradient: Tensor) -> Step:
    target = torch.empty_like(gradient)
    return lambda: _drop(target.copy_(gradient))


def _drop(result: Tensor) -> None:
    """Drop a result."""


_VARIANTS: dict[str, Callable[[Load, list[Tensor], Tensor], Step]] = {
    "fused_adagrad": partial(_outsize, make=RowAdagrad, fused=True),
    "fused_sgd": partial(_outsize, make=RowSGD, fused=True),
    "staged_adagrad": partial(_outsize, make=RowAdagrad, fused=False),
    "staged_sgd": partial(_outsize, make=RowSGD, fused=False),
    "torch_sgd": partial(_torch, adagrad=False),
    "torch_adagrad": partial(_torch, adagrad=True),
    "gather": _gather,
    "copy": _copy,
}
