"""The numbers in docs/speed.md, written from the results files.

python -m benchmarks.speed.measured_in_docs
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.files import write_text_atomically

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "speed.md"
_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
_PEERS = {
    "fbgemm": "FBGEMM",
    "torch_adagrad": "`nn.EmbeddingBag(sparse=True)` with torch's Adagrad",
    "torch_sgd": "`nn.EmbeddingBag(sparse=True)` with torch's SGD",
}


def main() -> None:
    """Write the numbers into the page."""
    write_text_atomically(PAGE, with_numbers(PAGE.read_text()))


def with_numbers(page: str) -> str:
    """The page with the numbers of the results files between its two marks."""
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    return "".join(
        (
            before,
            _BEGIN,
            _rows(),
            "\n",
            _rows_on_a_gpu(),
            "\n",
            _compositional(),
            "\n",
            _cache(),
            "\n",
            _dlrm(),
            "\n",
            _steps_on_a_gpu(),
            _END,
            after,
        )
    )


def _rows() -> str:
    results = _results("rows")
    with_2, with_1 = results["points"][:2]
    assert (with_2["num_threads"], with_1["num_threads"]) == (2, 1)
    lines = [
        f"Rows: {with_2['num_tables']} tables of {with_2['num_rows']:,} rows of {with_2['dim']}, "
        f"batch {with_2['batch_size']:,} ({_source(results)}).\n",
        "| how many times as long as ours, 2 threads (1 thread) | `fused` | `staged` |",
        "|---|--:|--:|",
    ]
    for peer, name in _PEERS.items():
        keys = [f"{prefix}speedup_vs_{peer}" for prefix in ("", "staged_")]
        cells = [f"{with_2[key]:.1f} ({with_1[key]:.1f})" for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    wide = next(point for point in results["points"] if point["dim"] == 128)
    times = [
        " ms and ".join(f"{point['variants'][name]['median_ms']:.1f}" for point in (with_2, with_1))
        for name in ("fused", "staged")
    ]
    return "\n".join(lines) + (
        f"\n\nWith two threads and with one, a fused step takes {times[0]} ms, a staged one "
        f"{times[1]} ms. With rows of 128, FBGEMM takes {wide['speedup_vs_fbgemm']:.2f} times as "
        "long as `fused`.\n"
    )


def _rows_on_a_gpu() -> str:
    results = _results("rows", "gpu")
    point = results["points"][0]
    times = {name: timing["median_ms"] for name, timing in point["variants"].items()}
    ids = point["batch_size"] * point["num_features"]
    lines = [
        f"Rows on a GPU: {point['num_rows']:,} rows of {point['dim']}, {ids / 1e6:.1f} million ids "
        f"per step ({_source(results)}).\n",
        "| ms per step | SGD | Adagrad |",
        "|---|--:|--:|",
    ]
    for name, words in (
        ("fused", "`fused`"),
        ("staged", "`staged`"),
        ("torch", "`nn.Embedding(sparse=True)` with torch's optimizer"),
    ):
        cells = [f"{times[f'{name}_{rule}']:.1f}" for rule in ("sgd", "adagrad")]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + (
        f"\n\n`index_select` of those rows alone takes {times['gather']:.1f} ms, and a copy of as "
        f"many bytes as the vectors have {times['copy']:.1f} ms. Our Adagrad is row-wise.\n"
    )


def _compositional() -> str:
    results = _results("compositional")
    with_2, with_1 = results["rows"][:2]
    assert (with_2["threads"], with_1["threads"]) == (2, 1)
    return (
        f"Look-up and backward of {with_2['batch']:,} ids by CCE with {results['columns']} columns "
        f"take {with_2['methods']['cce']['median_ms']:.1f} ms, {with_2['cce_vs_sparse']:.1f} times "
        "as long as by `nn.Embedding(sparse=True)` with two threads, "
        f"{with_1['cce_vs_sparse']:.1f} times with one ({_source(results)}).\n"
    )


def _cache() -> str:
    results = _results("cache")
    few, many = results["growth"]["slots"]
    return (
        f"A cache finds {results['lookups']['million_per_s']:.0f} million rows per second. With "
        f"{many:,} rows in it, a step takes {results['ratio_slots']:.2f} times as long as with "
        f"{few:,}. A step of four ranks takes {results['ratio_float32']:.2f} times as long with a "
        f"cache as without one in float32, and {results['ratio_int8']:.2f} times in int8 "
        f"({_source(results)}).\n"
    )


def _dlrm() -> str:
    results = _results("dlrm")
    row = next(row for row in results["rows"] if row["batch_size"] == 2048)
    step, dense = (row[name]["median_s"] * 1e3 for name in ("step", "dense"))
    return (
        f"A step of DLRM at batch {row['batch_size']:,} takes {step:.1f} ms, and {dense:.1f} ms on "
        f"vectors that are given: all that concerns rows is {row['share']:.1%} of it, and "
        f"{row['share_alone']:.1%} if timed alone ({_source(results)}).\n"
    )


def _steps_on_a_gpu() -> str:
    dlrm, tables, cache = (_results(name, "gpu") for name in ("dlrm", "compositional", "cache"))
    factors = {
        (row["batch_size"], row["optimizer"].split(" ")[0]): row["speed_up"]
        for row in dlrm["speed"]
    }
    captured = next(row for row in dlrm["tables"] if row["batch_size"] == 2048)
    by_capture = captured["eager"]["median_s"] / captured["outsize"]["median_s"]
    cce, step = tables["rows"][0], cache["steps"][0]
    return (
        f"On a GPU, a captured step of DLRM is {factors[2048, 'sgd']:.1f} times as fast as plain "
        f"PyTorch with SGD at batch 2,048, {factors[16384, 'sgd']:.1f} times at 16,384, and "
        f"{factors[2048, 'Adagrad']:.0f} and {factors[16384, 'Adagrad']:.0f} times with Adagrad; "
        "plain steps are bound by launches, which take longer on slower hosts. With CCE tables, "
        f"a step at batch 2,048 is {by_capture:.1f} times as fast captured as not "
        f"({_source(dlrm)}). Look-up and backward of {cce['batch'] / 1e6:.1f} million ids by CCE "
        f"take {cce['cce_vs_sparse']:.1f} times as long as by `nn.Embedding(sparse=True)` "
        f"({_source(tables)}). With a cache over rows of the same GPU, a step of "
        f"{step['num_ids']:,} ids of {step['dim']} takes {step['ratio']:.1f} times as long as "
        f"without, and waits for the device {step['waits']:.0f} times ({_source(cache)}).\n"
    )


def _results(name: str, device: str = "cpu") -> Mapping[str, Any]:
    path = ROOT / "benchmarks" / "results" / f"{name}-{device}.json"
    return {**json.loads(path.read_text()), "page": path.with_suffix(".md").name}


def _source(results: Mapping[str, Any]) -> str:
    facts = results["environment"]
    machine = facts.get("gpu", facts["cpu"].split(",")[0])
    return f"`{results['page']}`, {machine}, {facts['measured_at'][:10]}"


if __name__ == "__main__":
    main()
