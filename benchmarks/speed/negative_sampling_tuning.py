"""Sweep the tile sizes of the CUDA kernels that draw from a softmax.

    python -m benchmarks.speed.negative_sampling_tuning --out benchmarks/results

Every setting of the grid is first checked against the log-partition of the torch path, then timed
in turns with the bare bfloat16 product: the pass alone (0 draws), 1 draw and 16 draws per query.
The fastest ones belong in `default_tuning`. Settings that a device cannot run are recorded with
the reason.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.runner import typed_command, write_page
from outsize.bench.negative_sampling import Workload, workload
from outsize.bench.timing import time_in_turns
from outsize.kernels.softmax.chunks import draw_by_chunks
from outsize.kernels.softmax.logit_tiles import as_factors
from outsize.kernels.softmax.triton.draw_launches import draw_by_triton
from outsize.kernels.softmax.triton.tile_launches import limits
from outsize.kernels.softmax.tuning import SoftmaxTuning, default_tuning
from outsize.negatives.cache.precision import PRECISIONS

SIZES = ((256, 1 << 20, 768), (1024, 1 << 20, 768), (1024, 1 << 22, 128))
# Queries, items and depth of a tile, warps, stages. The smaller ones leave room for two or three
# programs per multiprocessor (228 KB), so that one multiplies while others compute exponentials.
TILES = (
    (128, 128, 64, 4, 2),
    (128, 128, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (64, 256, 64, 4, 2),
)
# Descriptors, programs per multiprocessor, flatten.
ORDERS = (
    (False, 0, False),
    (False, 2, True),
    (True, 1, True),
    (True, 2, True),
    (True, 3, True),
    (True, 3, False),
)
DRAWS = (0, 1, 16)


def grid(base: SoftmaxTuning) -> Iterator[SoftmaxTuning]:
    """The setting that is used now, then every setting of the grid."""
    yield base
    for (queries, items, depth, warps, stages), (descriptors, programs, flatten) in product(
        TILES, ORDERS
    ):
        yield replace(
            base,
            query_tile=queries,
            item_tile=items,
            depth=depth,
            num_warps=warps,
            num_stages=stages,
            block=min(base.block, items),
            descriptors=descriptors,
            programs_per_processor=programs,
            flatten=flatten,
        )


def measure(load: Workload, expected: Tensor, tuning: SoftmaxTuning, rounds: int) -> dict[str, Any]:
    """Seconds of the product and of draws with this setting, or the reason why it cannot run."""
    inputs = (load.queries, load.items)
    draw = partial(draw_by_triton, *inputs, generator=load.generator, tuning=tuning)
    try:
        found = draw(num=0).log_partition
        error = (found - expected).abs().max().item()
        factors, queries = as_factors(load.items.vectors).t(), load.queries.bfloat16()
        ways = {f"{num} draws": partial(draw, num=num) for num in DRAWS}
        timings = time_in_turns(
            {"product": lambda: queries.to(factors.dtype) @ factors, **ways},
            rounds=rounds,
            calls=10,
        )
    except Exception as problem:
        return {"tuning": asdict(tuning), "problem": str(problem).splitlines()[0][:200]}
    seconds = {name: timing.median_s for name, timing in timings.items()}
    return {"tuning": asdict(tuning), "largest_error": error, "median_s": seconds}


def table(results: dict[str, Any], best: int = 8) -> str:
    """The fastest settings of each size as Markdown."""
    names = ["product", *(f"{num} draws" for num in DRAWS)]
    parts = []
    for case in results["cases"]:
        ran = [row for row in case["rows"] if "median_s" in row]
        ran.sort(key=lambda row: float(row["median_s"]["1 draws"]))
        lines = [
            "{:,} queries, {:,} items of dim {}, {}:\n".format(*case["size"], case["dtype"]),
            f"| {' | '.join(names)} | error | setting |",
            "|--:|--:|--:|--:|--:|--|",
        ]
        for row in ran[:best]:
            cells = [f"{row['median_s'][name] * 1e3:.3f} ms" for name in names]
            setting = ", ".join(f"{key} {value}" for key, value in row["tuning"].items())
            lines.append(f"| {' | '.join(cells)} | {row['largest_error']:.1e} | {setting} |")
        failed = len(case["rows"]) - len(ran)
        lines.append(f"\n{failed} of {len(case['rows'])} settings could not run.\n")
        parts.append("\n".join(lines))
    return "\n".join(parts)


def main() -> None:
    """Sweep; show the fastest settings and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[0, 1, 2], help="which of the three"
    )
    parser.add_argument("--dtype", choices=PRECISIONS, default="bfloat16")
    parser.add_argument(
        "--blocks", type=int, nargs="*", help="items per block, instead of the default"
    )
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = []
    for size in (SIZES[place] for place in options.sizes):
        dtype = PRECISIONS[options.dtype]
        load = workload(*size, dtype)
        ours = default_tuning(*size, dtype, 1, limits(load.queries.device))
        expected = draw_by_chunks(load.queries, load.items, 0, load.generator).log_partition
        rows = []
        for block in options.blocks or [ours.block]:
            draw_depth = max(16, ours.draw_depth * ours.block // block)
            settings = grid(replace(ours, block=block, draw_depth=draw_depth))
            for tuning in dict.fromkeys(settings):  # one of them is the default
                rows.append(measure(load, expected, tuning, options.rounds))
                print(json.dumps(rows[-1]), flush=True)
        cases.append({"size": size, "dtype": options.dtype, "rows": rows})
    command = typed_command("benchmarks.speed.negative_sampling_tuning")
    title = "negative-sampling-tuning: tile sizes of the kernels, fastest first"
    name = f"negative-sampling-tuning-{options.dtype}"
    write_page(name, title, command, table({"cases": cases}), options.out, print, cases=cases)


if __name__ == "__main__":
    main()
