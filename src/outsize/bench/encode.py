"""Speed and peak memory of encoding a click log, and the time to open it again.

The log is synthetic, in the format of the Criteo logs: counts with a long tail, and hexadecimal
values that follow a Zipf distribution over vocabularies of very different sizes. A process of its
own encodes it, so that its peak memory is that of encoding alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from outsize.bench.runner import Benchmark

ABOUT = "rows/s, MB/s and peak memory of encoding a log in Criteo's format"
FULL_BYTES = 1_000_000_000
QUICK_BYTES = 5_000_000
_CHUNK_ROWS = 20_000
_VOCABULARIES = np.logspace(1, 7.2, 26).astype(np.int64)

_MEASURED = """
import json, resource, sys, time
from outsize.data import CriteoConfig

def open_s(**changes):
    started = time.perf_counter()
    CriteoConfig((sys.argv[1],), **changes).build()
    return time.perf_counter() - started

started = time.perf_counter()
data = CriteoConfig((sys.argv[1],)).build()
elapsed = time.perf_counter() - started
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rows = sum(data.num_examples(split) for split in ("train", "validation", "test"))
started = time.perf_counter()
read = sum(batch.num_examples for batch in data.batches("train", 2048))
read_s = time.perf_counter() - started
known_s = open_s()
(stamp,) = data.folder.parent.glob("*.verified.json")
stamp.unlink()
print(json.dumps({
    "rows": rows, "encode_s": elapsed, "peak_bytes": peak, "read_rows_per_s": read / read_s,
    "num_ids": sum(data.vocabularies.values()),
    "encoded_bytes": sum(file.stat().st_size for file in data.folder.iterdir()),
    "open_known_s": known_s, "open_changed_s": open_s(), "open_verify_s": open_s(verify=True),
}))
"""


def run(
    quick: bool, say: Callable[[str], None], num_bytes: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """Write a file, encode it in a process of its own, and read it once.

    Args:
        quick: Use a small file.
        say: Shows progress.
        num_bytes: Size of the file; the run needs 1.7 times as much space on disk.
        seed: Seed of its values.
    """
    size = num_bytes or (QUICK_BYTES if quick else FULL_BYTES)
    with tempfile.TemporaryDirectory(prefix="outsize-encode-") as folder:
        path = Path(folder) / "train.txt"
        say(f"writing {size / 1e6:,.0f} MB in Criteo's format")
        write_criteo_like(path, size, seed)
        say("encoding it")
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(path)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"encoding failed: {done.stderr}")
        measured = json.loads(done.stdout)
        num_file_bytes = path.stat().st_size
    return {
        "seed": seed,
        "source_bytes": num_file_bytes,
        **measured,
        "rows_per_s": measured["rows"] / measured["encode_s"],
        "bytes_per_s": num_file_bytes / measured["encode_s"],
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    cells = [
        f"{results['source_bytes'] / 1e6:,.0f} MB",
        f"{results['rows']:,}",
        f"{results['num_ids']:,}",
        f"{results['rows_per_s']:,.0f}",
        f"{results['bytes_per_s'] / 1e6:,.0f}",
        f"{results['peak_bytes'] / 1e6:,.0f} MB",
        f"{results['read_rows_per_s']:,.0f}",
    ]
    return (
        "Both passes together, once. The peak is that of encoding, PyTorch and pyarrow included. "
        "The last column is one shuffled epoch in batches of 2,048.\n\n"
        "| source | rows | ids | rows/s | MB/s | peak memory | rows/s read back |\n"
        "|--:|--:|--:|--:|--:|--:|--:|\n"
        f"| {' | '.join(cells)} |\n\n{_opening(results)}"
    )


def _opening(results: dict[str, Any]) -> str:
    """Time to open encoded data, with and without comparing its checksums, as Markdown."""
    seconds = [results[f"open_{case}_s"] for case in ("known", "changed", "verify")]
    return (
        "Opening it again: files that have not changed since their bytes were compared, files that "
        "have, and with `verify = true`.\n\n"
        "| encoded | unchanged | changed | `verify = true` |\n"
        "|--:|--:|--:|--:|\n"
        f"| {results['encoded_bytes'] / 1e6:,.0f} MB | "
        f"{' | '.join(f'{s:.3f} s' for s in seconds)} |\n"
    )


def write_criteo_like(path: Path, num_bytes: int, seed: int) -> None:
    """Write lines of a label, 13 counts and 26 hexadecimal values, `num_bytes` in all."""
    draw = np.random.default_rng(seed)
    with path.open("wb") as file:
        while file.tell() < num_bytes:
            file.write(_lines(draw, min(_CHUNK_ROWS, 1 + (num_bytes - file.tell()) // 200)))


def _lines(draw: np.random.Generator, num_rows: int) -> bytes:
    import pyarrow as pa
    import pyarrow.csv as pc

    columns: dict[str, Any] = {"label": draw.integers(0, 2, num_rows)}
    for i in range(13):
        counts = draw.geometric(0.02, num_rows) - 1
        columns[f"I{i}"] = pa.array(counts, mask=draw.random(num_rows) < 0.1)
    for i, size in enumerate(_VOCABULARIES):
        # By inversion, close to a Zipf distribution of exponent 1.
        ranks = np.exp(draw.random(num_rows) * np.log(size)).astype(np.uint64)
        values = ((ranks + np.uint64(i)) * np.uint64(0x9E3779B1)) & np.uint64(0xFFFFFFFF)
        columns[f"C{i}"] = pa.array(_hexadecimal(values), mask=draw.random(num_rows) < 0.02)
    sink = pa.BufferOutputStream()
    options = pc.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    pc.write_csv(pa.table(columns), sink, options)
    return bytes(sink.getvalue())


def _hexadecimal(values: np.ndarray[Any, np.dtype[np.uint64]]) -> Any:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(28, -4, -4).astype(np.uint64)
    letters = digits[(values[:, None] >> shifts) & np.uint64(15)]
    return letters.view("S8")[:, 0].astype("U8")


BENCHMARK = Benchmark("encode", "outsize bench encode", ABOUT, run, table)
