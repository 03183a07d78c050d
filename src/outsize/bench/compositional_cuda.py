"""Look-up and backward of compositional tables on a GPU, and the bytes they move.

The bytes of a step are those it cannot do without: ids and pointers in both directions, vectors,
their gradients, and the gradients of the codes. The codes stay in the L2 cache. Bytes per second
are compared with a copy of as many numbers as the vectors have, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from outsize.bench.conditions import kernels_of
from outsize.bench.timing import extra_bytes, time_in_turns
from outsize.bench.workloads import scattered_ids
from outsize.contracts import EmbeddingTable
from outsize.spec import TableSpec
from outsize.tables import build_table

SPARSE, DENSE = "nn.Embedding, sparse", "nn.Embedding, dense"
_COMPILED, _REFERENCE = "cce in plain PyTorch, torch.compile", "cce in plain PyTorch"
_METHODS: dict[str, dict[str, Any]] = {
    "cce": {},
    "cce, packed pointers": {"method": "cce", "pointers": "packed"},
    "cce, columns of their own": {"method": "cce", "shared": False},
    "ce-concat": {},
    "ce-hybrid": {},
    "circular": {},
    "robe": {},
    "hash": {},
}


class _Point(NamedTuple):
    """One setting: ids of the table, ids of the batch, dim, columns, parameters."""

    ids: int
    batch: int
    dim: int
    columns: int
    cap: int

    @property
    def title(self) -> str:
        return (
            f"{self.ids:,} ids, batch {self.batch:,}, dim {self.dim}, {self.columns} columns, "
            f"{self.cap:,} parameters"
        )


_FIRST = _Point(1_000_000, 1_703_936, 64, 4, 16_384)
_GROWTH = [
    _FIRST._replace(ids=10_000_000),
    *(_FIRST._replace(batch=batch) for batch in (2_048, 65_536)),
    _FIRST._replace(dim=128),
    _FIRST._replace(columns=8),
    *(_FIRST._replace(cap=cap) for cap in (65_536, 1_000_000)),
]


def run_on_cuda(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Time every method at one setting, and CCE at several."""
    points = [_Point(2_000, 256, 16, 4, 1_600)] if quick else [_FIRST, *_GROWTH]
    rounds = 3 if quick else 11
    rows: list[dict[str, Any]] = []
    for point in points:
        say(point.title)
        rows.append(_measure(point, rounds, is_whole=not rows))
        torch.cuda.empty_cache()
    return {"device": "cuda", "rows": rows}


def cuda_table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    first = results["rows"][0]
    lines = [
        "Milliseconds of look-up and backward (median of rounds taken in turns; p10 to p90 in "
        "brackets), the look-up alone, the share of the copy bandwidth "
        f"({first['copy_tb_per_s']:.2f} TB/s) for the bytes that a step must move, the most memory "
        "beside tables, ids and gradients, and whether two steps had the same gradients bit for "
        f"bit. {first['title']}; Zipf(1.05) ids.\n",
        "| method | look-up and backward | look-up | share | memory | the same |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name, found in first["methods"].items():
        if "median_ms" not in found:
            lines.append(f"| {name} | {found['failed']} | | | | |")
            continue
        share = f"{found['share']:.0%}" if "share" in found else ""
        alone = f"{found['forward_ms']:.3f}" if "forward_ms" in found else ""
        lines.append(
            f"| {name} | {found['median_ms']:.3f} ({found['p10_ms']:.3f} to "
            f"{found['p90_ms']:.3f}) | {alone} | {share} | {found['memory_mb']:,.0f} MB | "
            f"{'yes' if found['repeats_itself'] else 'no'} |"
        )
    lines += [
        "\nCCE at other sizes, in milliseconds of look-up and backward.\n",
        f"| setting | cce | share | the same | {SPARSE} | {DENSE} | cce, of sparse |",
        "|---|--:|--:|---|--:|--:|--:|",
    ]
    for row in results["rows"]:
        cce, sparse, dense = (row["methods"][name] for name in ("cce", SPARSE, DENSE))
        lines.append(
            f"| {row['title']} | {cce['median_ms']:.3f} | {cce['share']:.0%} | "
            f"{'yes' if cce['repeats_itself'] else 'no'} | "
            f"{sparse['median_ms']:.3f} | {dense['median_ms']:.3f} | {row['cce_vs_sparse']:.2f}× |"
        )
    return "\n".join(lines) + "\n"


def _measure(point: _Point, rounds: int, is_whole: bool) -> dict[str, Any]:
    ids, gradient = _batch(point)
    modules = _modules(point, is_whole)
    steps = {name: partial(_step, module, ids, gradient) for name, module in modules.items()}
    looks = {name: partial(_look_up, module, ids) for name, module in modules.items()}
    failed: dict[str, dict[str, Any]] = {}
    compiled: Any = None
    if is_whole:
        compiled = torch.compile(modules["cce"])
        steps[_COMPILED] = partial(_step, compiled, ids, gradient)
        for calls in (steps, looks):
            calls[_REFERENCE] = partial(_by_torch, calls["cce"])
        try:
            steps[_COMPILED]()
        except Exception as error:
            failed[_COMPILED] = {"failed": f"not compiled: {type(error).__name__}"}
            del steps[_COMPILED]
    copy_tb_per_s = _copy_bandwidth(gradient, rounds)
    timings = time_in_turns(steps, rounds=rounds, calls=5)
    forward = time_in_turns(looks, rounds=rounds, calls=5) if is_whole else {}
    methods: dict[str, dict[str, Any]] = {}
    for name, timing in timings.items():
        methods[name] = {**timing.in_ms(), "memory_mb": extra_bytes(steps[name]) / 1e6}
        module = modules.get(name, modules["cce"])
        with kernels_of("torch") if name == _REFERENCE else nullcontext():
            again = compiled if name == _COMPILED else module
            methods[name]["repeats_itself"] = _repeats_itself(again, ids, gradient)
        if name in forward:
            methods[name]["forward_ms"] = forward[name].median_s * 1e3
        if isinstance(module, EmbeddingTable):
            moved = _bytes_moved(module, point)
            methods[name]["bytes"] = moved
            methods[name]["share"] = moved / timing.median_s / 1e12 / copy_tb_per_s
    cce = timings["cce"].median_s
    return {
        **point._asdict(),
        "title": point.title,
        "copy_tb_per_s": copy_tb_per_s,
        "cce_vs_sparse": cce / timings[SPARSE].median_s,
        "cce_vs_dense": cce / timings[DENSE].median_s,
        "methods": methods | failed,
    }


def _modules(point: _Point, is_whole: bool) -> dict[str, nn.Module]:
    """The peers, and the methods or CCE alone."""
    spec = TableSpec("ad", point.ids, point.dim)
    found: dict[str, nn.Module] = {
        SPARSE: nn.Embedding(point.ids, point.dim, sparse=True, device="cuda"),
        DENSE: nn.Embedding(point.ids, point.dim, device="cuda"),
    }
    for name, options in (_METHODS if is_whole else {"cce": {}}).items():
        own = {"method": name, **options}
        if own["method"] != "hash":
            own["columns"] = point.columns
        found[name] = build_table(**own, spec=spec, max_params=point.cap).cuda()
    return found


def _batch(point: _Point) -> tuple[Tensor, Tensor]:
    """Ids and the gradient of their vectors."""
    draw = torch.Generator().manual_seed(0)
    ids = scattered_ids(point.ids, point.batch, draw).cuda()
    return ids, torch.randn(point.batch, point.dim, device="cuda")


def _bytes_moved(table: EmbeddingTable, point: _Point) -> int:
    """Bytes that look-up and backward must move; see the module docstring."""
    per_id = 2 * 8 + 2 * 4 * point.dim
    pointers = getattr(table, "pointers", None)
    if pointers is not None:
        bits = getattr(table, "pointer_bits", 8 * pointers.element_size())
        per_id += 2 * point.columns * bits // 8
    return point.batch * per_id + sum(4 * weight.numel() for weight in table.parameters())


def _copy_bandwidth(like: Tensor, rounds: int) -> float:
    """Terabytes per second that a copy reads and writes."""
    source = torch.empty(max(like.numel(), 1 << 26), device="cuda")
    target = torch.empty_like(source)
    timing = time_in_turns({"copy": lambda: target.copy_(source)}, rounds=rounds, calls=10)
    return 2 * source.nbytes / timing["copy"].median_s / 1e12


def _step(module: nn.Module, ids: Tensor, gradient: Tensor) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    module(ids).backward(gradient)
    for parameter in module.parameters():
        parameter.grad = None


def _repeats_itself(module: Any, ids: Tensor, gradient: Tensor) -> bool:
    """Whether two steps give the same gradients, bit for bit."""
    found = []
    for _ in range(2):
        module(ids).backward(gradient)
        own = [parameter.grad for parameter in module.parameters()]
        found.append([grad.coalesce().values() if grad.is_sparse else grad for grad in own])
        for parameter in module.parameters():
            parameter.grad = None
    return all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@torch.no_grad()
def _look_up(module: nn.Module, ids: Tensor) -> None:
    module(ids)


def _by_torch(call: Callable[[], object]) -> None:
    with kernels_of("torch"):
        call()
