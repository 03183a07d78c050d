"""Methods of finding negatives on real data, at equal steps and at equal time, three seeds each.

    python -m benchmarks.negatives.real_data DATA --out benchmarks/results

DATA is a folder with the files that `examples/real/{amazon_book,ml1m_two_tower}.toml` name. Every
cell is a process with one thread that trains from that run file, with users and items as ids only
and `[negatives]` replaced, and is tested after a number of steps and after a number of seconds.
Seconds are processor time of training steps, so other work on the machine disturbs them little.
Finished cells are kept in `--work`, so an interrupted grid continues where it stopped. With
`--method`, the rows of other methods stay as the results have them.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outsize.bench.runner import results_page, write_results
from outsize.data.click_data import SPLITS
from outsize.data.encoding.splits import HashSplit
from outsize.data.interactions import InteractionsConfig
from outsize.negatives import NEGATIVES
from outsize.reporting.environment import environment
from outsize.training import load_config
from outsize.training.config import RunConfig

EXAMPLES = Path(__file__).parents[2] / "examples" / "real"


@dataclass(frozen=True)
class DataSet:
    """A data set, and how models train on it.

    Attributes:
        run: Its run file.
        steps: Steps after which methods are compared at equal steps.
        seconds: Seconds after which they are compared at equal time.
        settings: Overrides of settings in the run file.
    """

    run: str
    steps: int
    seconds: float
    settings: tuple[str, ...]


DATA_SETS = {
    "amazon_book": DataSet("amazon_book.toml", 3000, 60, ("train.batch_size=256",)),
    "ml1m": DataSet(
        "ml1m_two_tower.toml",
        2000,
        30,
        ("train.batch_size=256", "embeddings.dim=64", "model.hidden=[]", "negatives.beta=8",
         "embeddings.optimizer.learning_rate=0.1"),
    ),
}  # fmt: skip
_CACHE = {"num_negatives": 16, "refresh": 0.01}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "cache": ("cache", _CACHE),
    "cache, joined with the batch": ("cache", {**_CACHE, "in_batch": True}),
    "cache, control variate": ("cache", {**_CACHE, "estimator": "control-variate"}),
    "cache of a tenth, streaming": (
        "cache",
        {"num_negatives": 16, "feed": "stream", "num_items": 0.1, "num_new": 64},
    ),
    "in-batch": ("in-batch", {}),
    "in-batch, logQ": ("in-batch", {"log_q": True}),
    "in-batch, logQ, 8 times the batch": ("in-batch", {"log_q": True, "chunk_size": 256}),
    "queue": ("queue", {"num_items": 65_536}),
    "queue, logQ": ("queue", {"num_items": 65_536, "log_q": True}),
    "cache of positives, k = 1, LRU": (
        "cache",
        {
            "feed": "positives",
            "num_negatives": 1,
            "eviction": "lru",
            "log_q": False,
            "estimator": "weighted",
        },
    ),
    "uniform": ("uniform", {"num_negatives": 16}),
    "top-items": ("top-items", {"num_negatives": 16, "refresh_every": 100}),
    "exact": ("exact", {}),
}
_LARGER = {"in-batch, logQ, 8 times the batch": 8}


def configured(arguments: argparse.Namespace, data_set: str, method: str) -> RunConfig:
    """The configuration of a cell; every method has the run file's β and learning rates."""
    how = DATA_SETS[data_set]
    found = load_config(EXAMPLES / how.run, [
        "train.epochs=100000", "train.early_stop=false", "train.log_every=1000000000",
        "train.device=cpu", f"seed={arguments.seed}", *how.settings, *arguments.set,
    ])  # fmt: skip
    assert found.negatives is not None
    assert isinstance(found.data, InteractionsConfig)
    data = replace(
        found.data,
        path=tuple(str(arguments.data / Path(path).name) for path in found.data.path),
        query_features=(),
        item_features=(),
        multi_valued=(),
    )
    if data_set == "ml1m":  # many held-out pairs per user say more than one
        data = replace(data, split=HashSplit())
    kind, options = METHODS[method]
    if options.get("num_items", 1) < 1:
        num_items = data.build().items.num_rows
        options = {**options, "num_items": int(options["num_items"] * num_items)}
    larger = _LARGER.get(method, 1) * found.train.batch_size
    return replace(
        found,
        data=data,
        negatives=NEGATIVES[kind](beta=found.negatives.beta, **options),
        train=replace(found.train, batch_size=larger),
    )


def run_cell(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one cell; its metrics at the given number of steps and of seconds."""
    import torch

    from outsize.training.build import build_optimizer
    from outsize.training.loop import Loop
    from outsize.training.tasks import TASKS

    torch.set_num_threads(1)
    data_set, method = arguments.cell
    how = DATA_SETS[data_set]
    config = configured(arguments, data_set, method)
    torch.manual_seed(config.seed)
    task = TASKS[config.task](config)
    loop = Loop(task, config, build_optimizer(config, task.trained))
    loop._validate = lambda: None  # type: ignore[method-assign]
    loop.begin()  # filling a cache is not a step
    found: dict[str, Any] = {}
    spent, started = 0.0, time.process_time()
    for step in loop.steps():
        spent += time.process_time() - started
        if step == how.steps:
            found["at_steps"] = {"seconds": spent, **task.evaluate(arguments.split)}
            if arguments.steps_only:
                break
        if spent >= how.seconds and "at_seconds" not in found:
            found["at_seconds"] = {"steps": step, **task.evaluate(arguments.split)}
        if len(found) == 2:
            break
        started = time.process_time()
    return found


def cell_in_process(
    arguments: argparse.Namespace, data_set: str, method: str, seed: int
) -> dict[str, Any]:
    """The results of one cell, read from its file if the cell is finished."""
    name = "-".join((data_set, *"".join(c if c.isalnum() else " " for c in method).split()))
    done = arguments.work / f"{name}-{seed}.json"
    if not done.exists():
        words = [sys.executable, "-m", "benchmarks.negatives.real_data", str(arguments.data),
                 "--cell", data_set, method,
                 "--seed", str(seed), "--split", arguments.split,
                 *(["--steps-only"] if arguments.steps_only else []),
                 *(w for s in arguments.set for w in ("--set", s))]  # fmt: skip
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        ran = subprocess.run(words, capture_output=True, text=True, env=one_thread)
        if ran.returncode:
            raise SystemExit(f"{done.stem}: {ran.stderr[-2000:]}")
        done.write_text(ran.stdout)
        print(done.stem, file=sys.stderr)
    result: dict[str, Any] = json.loads(done.read_text())
    return result


def main() -> None:
    """Run the grid and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=Path("runs/negatives"))
    parser.add_argument("--data-set", action="append", choices=DATA_SETS, help="all by default")
    parser.add_argument("--method", action="append", choices=METHODS, help="all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--split", choices=SPLITS[1:], default="test")
    parser.add_argument("--steps-only", action="store_true", help="compare at equal steps only")
    parser.add_argument("--set", action="append", default=[], help="override a setting of all runs")
    parser.add_argument("--cell", nargs=2, help="train this data set and method, and print JSON")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(run_cell(arguments)))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    data_sets = arguments.data_set or list(DATA_SETS)
    cells = list(itertools.product(data_sets, arguments.method or METHODS))
    with ThreadPoolExecutor(arguments.workers) as pool:
        runs = {
            (data_set, method, seed): pool.submit(
                cell_in_process, arguments, data_set, method, seed
            )
            for seed in range(arguments.seeds)
            for data_set, method in cells
        }
        results = {
            cell: [runs[*cell, seed].result() for seed in range(arguments.seeds)] for cell in cells
        }
    facts = environment()
    for data_set in data_sets:
        rows = [row(cell, each) for cell, each in results.items() if cell[0] == data_set]
        words = f"python -m benchmarks.negatives.real_data DATA --data-set {data_set}"
        stem = f"negatives-{data_set.replace('_', '-')}-cpu"
        content = {"command": words, "environment": facts, "seeds": arguments.seeds, "rows": rows}
        if arguments.method:
            earlier = json.loads((arguments.out / f"{stem}.json").read_text())
            content = {**earlier, "rows": merged(earlier, rows, facts["measured_at"])}
        title = f"negatives-{data_set}: the cache and its peers on real data"
        page = results_page(title, content, table(data_set, content))
        write_results(arguments.out / stem, content, page)


def merged(
    earlier: dict[str, Any], rows: list[dict[str, Any]], measured_at: str
) -> list[dict[str, Any]]:
    """Rows of several measurements in the order of the methods; the new ones say when they are."""
    found = {row["method"]: row for row in earlier["rows"]}
    found |= {row["method"]: {**row, "measured_at": measured_at} for row in rows}
    return [found[method] for method in METHODS if method in found]


def row(cell: tuple[str, str], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and range over seeds, at equal steps and at equal time."""
    found: dict[str, Any] = {"data_set": cell[0], "method": cell[1]}
    for where in ("at_steps", "at_seconds"):
        for name in ("recall@20", "ndcg@10", "loss"):
            values = [run[where][name] for run in runs]
            found[f"{where} {name}"] = {
                "mean": statistics.mean(values), "min": min(values), "max": max(values)
            }  # fmt: skip
    found["seconds"] = statistics.median(run["at_steps"]["seconds"] for run in runs)
    found["steps"] = statistics.median(run["at_seconds"]["steps"] for run in runs)
    return found


def table(data_set: str, content: dict[str, Any]) -> str:
    """The results as Markdown."""
    how = DATA_SETS[data_set]
    lines = [
        f"Mean of {content['seeds']} seeds (range) over the held-out pairs of all users; all items "
        "are ranked except a user's training items. One thread; seconds are processor time of "
        "training steps. β and learning rates are the same for all methods.\n",
        f"| negatives | recall@20 after {how.steps:,} steps | NDCG@10 | ms per step | "
        f"recall@20 after {how.seconds:g} s | NDCG@10 | steps |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in content["rows"]:
        recall, ndcg, recall_then, ndcg_then = (
            f"{row[name]['mean']:.4f} ({row[name]['min']:.4f} to {row[name]['max']:.4f})"
            for name in ("at_steps recall@20", "at_steps ndcg@10",
                         "at_seconds recall@20", "at_seconds ndcg@10")
        )  # fmt: skip
        ms = 1000 * row["seconds"] / how.steps
        lines.append(f"| {row['method']} | {recall} | {ndcg} | {ms:.1f} | {recall_then} | "
                     f"{ndcg_then} | {row['steps']:,.0f} |")  # fmt: skip
    later = [
        f"{row['method']} ({row['measured_at']})" for row in content["rows"] if "measured_at" in row
    ]
    if later:
        lines += [
            "",
            f"Measured at another time: {'; '.join(later)}. Compare these at equal steps only: "
            "other work on the machine changes times, and what is reached in them.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
