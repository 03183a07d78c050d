"""Latency and throughput of serving a DLRM, beside a plain PyTorch model behind the same server.

    python -m benchmarks.speed.serving --out benchmarks/results

`outsize serve` takes rows of raw values, which it checks and encodes; the plain endpoint takes
numbers and ids. Both are processes of their own on loopback, one thread each for torch, asked in
turns by the same clients.
"""

from __future__ import annotations

import contextlib
import csv
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import outsize
from benchmarks.runner import run_command
from benchmarks.speed.plain_server import PlainDLRM
from outsize.bench import Benchmark
from outsize.bench.timing import time_in_turns
from outsize.training import RunConfig, export_run
from outsize.training.strict_toml import decode

ABOUT = "latency and throughput of `outsize serve` and `predict` beside plain PyTorch"
PLAIN = "plain PyTorch"
_NUM_DENSE, _DIM, _BOTTOM, _TOP = 4, 16, (64,), (64,)
_CLIENTS, _ROWS = (1, 8), (1, 64)
_REPOSITORY = Path(__file__).parents[2]


def run(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and export the models, serve them, and ask them in turns."""
    sizes = (10, 100, 1_000, 2_000) if quick else (10, 100, 1_000, 10_000, 20_000, 20_000, 50, 500)
    repeats, requests = (2, 16) if quick else (5, 120)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            say("train and export")
            exports = make_exports(Path(folder), sizes, 500 if quick else 20_000)
            table_sizes = [table.spec.num_rows for table in tables_of(exports["full"])]
            shape = {"sizes": table_sizes, "dim": _DIM, "num_dense": _NUM_DENSE,
                     "bottom": _BOTTOM, "top": _TOP}  # fmt: skip
            found = {
                "bytes": {name: (path / "model.safetensors").stat().st_size
                          for name, path in exports.items()},
                "in_process": in_process(exports, shape, 3 if quick else 15),
                "served": served(exports, shape, repeats, requests, say),
            }  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    return {"sizes": list(sizes), "repeats": repeats, "requests": requests, **found}


def make_exports(folder: Path, sizes: Sequence[int], num_rows: int) -> dict[str, Path]:
    """Exports of DLRMs over full tables, CCE and 8-bit rows, trained briefly on random clicks."""
    log = folder / "log.csv"
    columns = [*(f"n{i}" for i in range(_NUM_DENSE)), *(f"c{i}" for i in range(len(sizes)))]
    with log.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *columns])
        draw = random.Random(0)
        for row in raw_rows(sizes, num_rows, seed=1):
            writer.writerow([int(draw.random() < 0.3), *(row[name] for name in columns)])
    exports = {}
    for name, embeddings in (
        ("full", {"kind": "tables"}),
        ("cce", {"kind": "tables", "method": "cce", "max_params": 16_000}),
    ):
        tree = {
            "data": {"kind": "tabular", "path": [str(log)], "label": "label",
                     "cache": str(folder / "cache"),
                     "standardize": columns[:_NUM_DENSE], "categorical": columns[_NUM_DENSE:]},
            "model": {"kind": "dlrm", "bottom": list(_BOTTOM), "top": list(_TOP)},
            "embeddings": {"dim": _DIM, **embeddings},
            "train": {"batch_size": 1024, "epochs": 1},
        }  # fmt: skip
        config = decode(RunConfig, tree, "serving")
        outsize.train(config, folder / name, quiet=True)
        exports[name] = folder / f"{name}-exported"
        export_run(folder / name, exports[name])
        if name == "full":
            exports["int8"] = folder / "int8-exported"
            export_run(folder / name, exports["int8"], quantize="int8")
    return {name: exports[name] for name in ("full", "cce", "int8")}


def raw_rows(sizes: Sequence[int], num_rows: int, seed: int) -> list[dict[str, Any]]:
    """Rows of raw values; small values are more frequent."""
    draw = random.Random(seed)
    return [
        {**{f"n{i}": round(draw.gauss(0, 1), 4) for i in range(_NUM_DENSE)},
         **{f"c{i}": f"value {int(size * draw.random() ** 2)}" for i, size in enumerate(sizes)}}
        for _ in range(num_rows)
    ]  # fmt: skip


def tables_of(folder: Path) -> list[Any]:
    """The tables of an export, in the order of its features."""
    embeddings = outsize.load_exported(folder).embeddings
    return [embeddings.tables[feature.table] for feature in embeddings.features]


def encoded(num_tables: Sequence[int], num_rows: int, seed: int) -> dict[str, list[list[Any]]]:
    """Rows for the plain model: numbers and ids."""
    draw = random.Random(seed)
    return {
        "dense": [[round(draw.gauss(0, 1), 4) for _ in range(_NUM_DENSE)] for _ in range(num_rows)],
        "ids": [[int(size * draw.random() ** 2) for size in num_tables] for _ in range(num_rows)],
    }


def in_process(
    exports: Mapping[str, Path], shape: dict[str, Any], rounds: int
) -> list[dict[str, Any]]:
    """Rows per second of `predict(rows)` and of the plain module's forward, without a server."""
    sizes, found = shape["sizes"], []
    plain = PlainDLRM(**shape).eval()
    models = {name: outsize.load_exported(path) for name, path in exports.items()}
    for num_rows in (1, 64, 8192):
        rows = raw_rows(sizes, num_rows, seed=2)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        ids = encoded(sizes, num_rows, seed=2)
        dense, values = torch.tensor(ids["dense"]), torch.tensor(ids["ids"])

        def forward(dense: Any = dense, values: Any = values) -> Any:
            with torch.no_grad():
                return plain(dense, values)

        variants: dict[str, Callable[[], Any]] = {PLAIN: forward}
        for name, model in models.items():
            variants[name] = partial(model.predict, columns)
        calls = 1 if num_rows > 64 else 20
        for name, timing in time_in_turns(variants, rounds=rounds, calls=calls).items():
            spread = [num_rows / timing.p90_s, num_rows / timing.p10_s]
            found.append({"model": name, "rows": num_rows,
                          "rows_per_s": num_rows / timing.median_s, "spread": spread})  # fmt: skip
    return found


def served(
    exports: Mapping[str, Path],
    shape: dict[str, Any],
    repeats: int,
    requests: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """p50, p99 and rows per second by server, clients and rows per request."""
    here = [sys.executable, "-c"]
    code = "from benchmarks.speed.plain_server import main; main()"
    commands = {PLAIN: [*here, code, json.dumps(shape)]}
    for name, path in exports.items():
        commands[name] = [sys.executable, "-m", "outsize", "serve", str(path), "--port", "0"]
    measured: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(server(words)) for name, words in commands.items()}
        for num_rows in _ROWS:
            raw = json.dumps(raw_rows(shape["sizes"], num_rows, seed=3))
            bodies = dict.fromkeys(ports, raw)
            bodies[PLAIN] = json.dumps(encoded(shape["sizes"], num_rows, seed=3))
            for clients in _CLIENTS:
                say(f"{clients} clients, {num_rows} rows per request")
                for repeat in range(repeats + 1):  # the first round warms up
                    for name, port in ports.items():
                        latencies, seconds = ask(port, bodies[name], clients, requests)
                        if repeat:
                            rate = len(latencies) * num_rows / seconds
                            key = name, clients, num_rows
                            measured.setdefault(key, []).append(_facts(latencies, rate))
    return [
        {"model": name, "clients": clients, "rows": num_rows, **_over_repeats(facts)}
        for (name, clients, num_rows), facts in measured.items()
    ]


@contextlib.contextmanager
def server(words: Sequence[str]) -> Iterator[int]:
    """A server in a process of its own; its port."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _paths()}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if match := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                port = int(match.group(1))
                break
        else:
            raise RuntimeError(f"the server has ended: {''.join(lines)}")
        _wait(port)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def ask(port: int, body: str, clients: int, requests: int) -> tuple[list[float], float]:
    """Seconds of each request, and of all of them together, from some threads."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    barrier = threading.Barrier(clients + 1)

    def work(own: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.connect()
        barrier.wait()
        for _ in range(requests // clients):
            started = time.perf_counter()
            connection.request("POST", "/predict", body, {"content-type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            own.append(time.perf_counter() - started)
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {content[:200]!r}")
        connection.close()

    threads = [threading.Thread(target=work, args=(own,)) for own in latencies]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    found = [value for own in latencies for value in own]
    if len(found) != requests // clients * clients:
        raise RuntimeError("some requests failed")
    return found, seconds


def _wait(port: int) -> None:
    """Wait until a server answers at all, whatever it answers."""
    for _ in range(600):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"no answer on port {port}")


def _paths() -> str:
    own = [str(_REPOSITORY), str(_REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(path for path in own if path)


def _facts(latencies: Sequence[float], rows_per_s: float) -> dict[str, float]:
    ordered = sorted(latencies)
    last = len(ordered) - 1
    return {"p50_ms": ordered[round(last * 0.5)] * 1e3, "p99_ms": ordered[round(last * 0.99)] * 1e3,
            "rows_per_s": rows_per_s}  # fmt: skip


def _over_repeats(facts: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Median, least and most over repeats."""
    return {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name in facts[0]
        for values in [[fact[name] for fact in facts]]
    }


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    sizes = ", ".join(f"{size:,}" for size in results["sizes"])
    lines = [
        f"DLRM over {len(results['sizes'])} features of up to {sizes} values, dim {_DIM}, "
        f"{_NUM_DENSE} numbers; one torch thread per process. `outsize serve` takes raw values, "
        "plain PyTorch takes ids that somebody else has encoded. Medians of "
        f"{results['repeats']} repeats in turns (least to most), {results['requests']} requests "
        "each; p50 and p99 of the requests of a repeat.\n",
        "| rows per request | clients | model | p50 ms | p99 ms | rows/s |",
        "|--:|--:|---|--:|--:|--:|",
    ]
    for row in results["served"]:
        cells = [_cell(row[name]) for name in ("p50_ms", "p99_ms")]
        cells.append(_cell(row["rows_per_s"], ",.0f"))
        lines.append(f"| {row['rows']} | {row['clients']} | {row['model']} | {' | '.join(cells)} |")
    lines += [
        "\nIn one process, `predict(rows)` of raw values beside the plain forward of tensors:\n",
        "| rows per call | model | rows/s | p10 to p90 |",
        "|--:|---|--:|--:|",
    ]
    for row in results["in_process"]:
        low, high = row["spread"]
        lines.append(f"| {row['rows']:,} | {row['model']} | {row['rows_per_s']:,.0f} | "
                     f"{low:,.0f} to {high:,.0f} |")  # fmt: skip
    sizes = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in results["bytes"].items())
    return "\n".join([*lines, f"\nWeights files: {sizes}."]) + "\n"


def _cell(fact: Mapping[str, float], form: str = ".2f") -> str:
    return f"{fact['median']:{form}} ({fact['least']:{form}} to {fact['most']:{form}})"


BENCHMARK = Benchmark("serving", "python -m benchmarks.speed.serving", ABOUT, run, table)

if __name__ == "__main__":
    run_command(BENCHMARK)
