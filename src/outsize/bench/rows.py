"""Look-up, backward and update of embedding rows on the CPU, beside PyTorch and FBGEMM.

`rows_on_device` has those on a GPU.

All variants train tables of the same shape on the same batches in one process, in turns: our rows
with updates in the backward pass (`fused`) and with separate steps, `nn.EmbeddingBag(sparse=True)`
with torch's SGD and Adagrad, and FBGEMM's table-batched bags with row-wise Adagrad.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from outsize.bench import rows_on_device
from outsize.bench.runner import Benchmark
from outsize.bench.timing import cell, time_in_turns
from outsize.bench.workloads import Features, make_batches, train_rows
from outsize.collection import EmbeddingCollection
from outsize.kernels.threads import torch_threads
from outsize.optimizers import RowAdagrad
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import LocalStore
from outsize.training.available_memory import available_bytes

ABOUT = "milliseconds of look-up, backward and update of rows beside PyTorch and FBGEMM"
_BATCHES_KEPT = 32  # whose rows do not fit the processor's cache
_RATE = 0.01
_PEERS = ("fbgemm", "torch_adagrad", "torch_sgd")


@dataclass(frozen=True)
class Shape(Features):
    """One setting.

    Attributes:
        num_threads: Threads of torch.
        variants: The variants that are measured; all by default.
    """

    num_threads: int = 2
    variants: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows of one variant."""
        return 4 * self.num_tables * self.num_rows * self.dim

    def settings(self) -> dict[str, float]:
        """The numbers of this setting, by name."""
        return {name: value for name, value in asdict(self).items() if name != "variants"}


Step = Callable[[], None]


def run(quick: bool, say: Callable[[str], None], device: str = "cpu") -> dict[str, Any]:
    """Measure the first setting with all peers, then growth in rows, batch, dim, skew, threads."""
    if device == "cuda":
        return {"device": device, **rows_on_device.run(quick, say, device)}
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch's Adagrad warns without
    first = Shape(num_threads=min(2, torch.get_num_threads()))
    if quick:
        first = replace(first, num_tables=3, num_rows=1000, batch_size=64)
    points = []
    with torch_threads():
        for shape in [first, *([] if quick else _growth(first))]:
            say(", ".join(f"{name} {value:,}" for name, value in shape.settings().items()))
            points.append(measure_shape(shape, rounds=3 if quick else 15, calls=1 if quick else 10))
    speedups = {name: value for name, value in points[0].items() if name.startswith("speedup_vs")}
    return {"points": points, **speedups}


def measure_shape(shape: Shape, *, rounds: int, calls: int) -> dict[str, Any]:
    """Time all variants in turns of several steps, as one of them would train alone."""
    torch.set_num_threads(shape.num_threads)
    batches, gradient = make_batches(shape, _BATCHES_KEPT)
    wanted = shape.variants or tuple(_VARIANTS)
    steps = {name: _VARIANTS[name](shape, batches, gradient) for name in wanted}
    kept = {name: step for name, step in steps.items() if step is not None}
    timings = time_in_turns(kept, rounds=rounds, calls=calls, warmup=3)
    peers = [name for name in _PEERS if name in timings]
    ratios = {
        f"{ours}{name}": timings[name].median_s / timings[variant].median_s
        for ours, variant in (("speedup_vs_", "fused"), ("staged_speedup_vs_", "staged"))
        for name in peers
        if variant in timings
    }
    variants = {name: timing.in_ms() for name, timing in timings.items()}
    return {**shape.settings(), "variants": variants, **ratios}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    if results.get("device") == "cuda":
        return rows_on_device.table(results)
    names = list(dict.fromkeys(name for point in results["points"] for name in point["variants"]))
    lines = [
        "Milliseconds per step: forward, backward and update of one id per table and example "
        "(median of rounds taken in turns; p10 to p90 in brackets). `fused` and `staged` are "
        "Outsize with row-wise Adagrad.\n",
        f"| tables × rows × dim | batch | skew | threads | {' | '.join(names)} |",
        "|---|--:|--:|--:|" + "--:|" * len(names),
    ]
    for point in results["points"]:
        cells = [cell(point["variants"].get(name)) for name in names]
        shape = f"{point['num_tables']} × {point['num_rows']:,} × {point['dim']}"
        lines.append(
            f"| {shape} | {point['batch_size']:,} | {point['skew']} | {point['num_threads']} | "
            f"{' | '.join(cells)} |"
        )
    first = results["points"][0]
    lines.append("\nTimes as long as `fused` and as `staged`, in the first setting:\n")
    lines += ["| peer | fused | staged |", "|---|--:|--:|"]
    for name in _PEERS:
        if f"speedup_vs_{name}" in first:
            ratios = (first[f"speedup_vs_{name}"], first[f"staged_speedup_vs_{name}"])
            lines.append(f"| {name} | {ratios[0]:.2f}× | {ratios[1]:.2f}× |")
    return "\n".join(lines) + "\n"


def _growth(first: Shape) -> Iterator[Shape]:
    if first.num_threads > 1:
        yield replace(first, num_threads=1)
    yield replace(first, num_rows=10_000)
    yield replace(first, num_rows=100_000)
    one_table = replace(first, num_tables=1, batch_size=first.num_tables * first.batch_size)
    yield replace(one_table, num_rows=10_000_000)
    largest = replace(one_table, num_rows=100_000_000, variants=("fused", "fbgemm"))
    if (available_bytes() or 0) > 3 * largest.num_bytes:
        yield largest
    yield replace(first, batch_size=256)
    yield replace(first, num_rows=100_000, batch_size=16_384)
    yield replace(first, num_rows=100_000, dim=128)
    yield replace(first, num_rows=100_000, skew=0.0)


def _outsize(
    shape: Shape, batches: Sequence[Mapping[str, Tensor]], gradient: Tensor, *, fused: bool
) -> Step:
    store = LocalStore([TableSpec(name, shape.num_rows, shape.dim) for name in shape.names])
    rows = RowAdagrad(store, _RATE, fused=fused)
    embeddings = EmbeddingCollection([FeatureSpec(name) for name in shape.names], store)
    return partial(train_rows, embeddings, rows, cycle(batches), gradient)


def _torch(
    shape: Shape, batches: Sequence[Mapping[str, Tensor]], gradient: Tensor, *, adagrad: bool
) -> Step:
    bags = [
        nn.EmbeddingBag(shape.num_rows, shape.dim, mode="sum", sparse=True) for _ in shape.names
    ]
    weights = [bag.weight for bag in bags]
    optimizer: Optimizer = Adagrad(weights, lr=_RATE) if adagrad else SGD(weights, lr=_RATE)
    offsets = torch.arange(shape.batch_size)
    gradients = [part.contiguous() for part in gradient.unbind(dim=1)]
    turn = cycle(batches)

    def step() -> None:
        batch = next(turn)
        optimizer.zero_grad()
        vectors = [bag(batch[name], offsets) for name, bag in zip(shape.names, bags, strict=True)]
        torch.autograd.backward(vectors, gradients)
        optimizer.step()

    return step


def _fbgemm(shape: Shape, batches: Sequence[Mapping[str, Tensor]], gradient: Tensor) -> Step | None:
    if importlib.util.find_spec("fbgemm_gpu") is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its own parts when it is imported
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

    table = (shape.num_rows, shape.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
    bags = SplitTableBatchedEmbeddingBagsCodegen(
        [table] * shape.num_tables,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=_RATE,
        device=torch.device("cpu"),
    )
    # Memory that was never written costs nothing to read.
    bags.init_embedding_weights_uniform(-_RATE, _RATE)
    offsets = torch.arange(shape.num_tables * shape.batch_size + 1)
    wide = gradient.reshape(shape.batch_size, -1).contiguous()
    turn = cycle(batches)

    def step() -> None:
        batch = next(turn)
        bags(torch.cat([batch[name] for name in shape.names]), offsets).backward(wide)

    return step


_VARIANTS: dict[str, Callable[..., Step | None]] = {
    "fused": lambda *given: _outsize(*given, fused=True),
    "staged": lambda *given: _outsize(*given, fused=False),
    "torch_sgd": lambda *given: _torch(*given, adagrad=False),
    "torch_adagrad": lambda *given: _torch(*given, adagrad=True),
    "fbgemm": _fbgemm,
}

BENCHMARK = Benchmark("rows", "outsize bench rows", ABOUT, run, table, run_on=run)
