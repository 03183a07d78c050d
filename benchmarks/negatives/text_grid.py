"""Negatives for a text encoder: rate and β of every method chosen on validation, then three seeds.

    python -m benchmarks.negatives.text_grid DATA --work CELLS --out benchmarks/results
    python -m benchmarks.negatives.text_grid DATA --work CELLS --model MINILM --batch 32 128

DATA is a Parquet file of pairs with columns `synopsis`, `description` and `split` (train, dev,
test), or those that `--query` and `--item` name. Without `--model`, a small encoder is trained from
scratch; with it, a folder of sentence-transformers is fine-tuned.

Every method gets the same trials, of every rate with every β, on a seed of their own. The best
validation MRR@10 chooses; then each seed is trained, and tested where its validation is best.
Finished runs are kept in `--work`, so an interrupted grid continues where it stopped. Several
processes with the same folder share the work: small steps on a GPU are bound by launches, so two or
three at once take little longer than one.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import multiprocessing
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.negatives.text_grid_results import table
from benchmarks.negatives.text_methods import METHODS, Cell, Encoder, config_of
from outsize.bench.runner import results_page, results_stem, say_to_console, write_results
from outsize.data.click_data import Split
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment
from outsize.training.build import build_device, build_optimizer
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.metric_names import Metrics
from outsize.training.tasks import TASKS

NAME = "text-negatives"
ABOUT = "ways of finding negatives for a text encoder, each with its own rate and β"
TRIAL_SEED = 100
_NO_MORE = 0.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Attributes:
        data: `[data]` of the runs.
        encoder: What is trained.
        device: Where.
        work: The folder of finished runs.
        until: When no further run begins, in seconds of `time.monotonic`; 0 for never.
    """

    data: dict[str, Any]
    encoder: Encoder
    device: str
    work: Path
    until: float = _NO_MORE

    def run(self, cell: Cell, say: Say) -> dict[str, Any] | None:
        """The results of a cell; `None` if another process is at it, or there is no time left."""
        path = self.work / f"{cell.name}.json"
        if not path.exists():
            with _claimed(path.with_suffix(".lock")) as is_ours:
                is_late = self.until and time.monotonic() > self.until
                if not is_ours or is_late or path.exists():
                    return json.loads(path.read_text()) if path.exists() else None
                found = _in_own_memory(self, cell)
                write_text_atomically(path, json.dumps(found) + "\n")
                best = found["validation"]["mrr@10"]
                say(f"{cell.name}: validation {best:.4f}, {found['train_s']:.0f} s")
        content: dict[str, Any] = json.loads(path.read_text())
        return content


class _MeasuredLoop(Loop):
    """A loop that knows how long it trained, and tests nothing in a trial."""

    evaluating_s = 0.0
    is_trial = False

    def _evaluate(self, split: Split) -> Metrics:
        started = time.process_time()
        found = {} if self.is_trial and split == "test" else super()._evaluate(split)
        self.evaluating_s += time.process_time() - started
        return found


def train_cell(config: RunConfig, cell: Cell) -> dict[str, Any]:
    """Train one run: its best validation, the test there, time and peak memory."""
    device = build_device(config.train.device)
    torch.manual_seed(config.seed)
    before = _begin_measuring(device)
    task = TASKS[config.task](config)
    loop = _MeasuredLoop(task, config, build_optimizer(config, task.trained))
    loop.is_trial = cell.is_trial
    loop.begin()  # filling a cache is not a step
    started, on_cpu = time.perf_counter(), time.process_time()
    for _ in loop.steps():
        pass
    elapsed_s, on_cpu = time.perf_counter() - started, time.process_time() - on_cpu
    trained_s = elapsed_s if device.type == "cuda" else on_cpu
    return {
        "cell": asdict(cell),
        "train_s": trained_s - loop.evaluating_s,
        "steps": loop.state.step,
        "peak_bytes": _peak(device) - before,
        "validation": loop.state.best,
        "test": loop.state.test,
    }


def _in_own_memory(grid: Grid, cell: Cell) -> dict[str, Any]:
    """Train a cell; on a CPU in a process of its own, which alone knows its peak memory."""
    config = config_of(cell, grid.data, grid.encoder, grid.device)
    if build_device(grid.device).type == "cuda":
        return train_cell(config, cell)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_train_and_send, args=(config, cell, theirs))
    child.start()
    theirs.close()
    try:
        found: dict[str, Any] = json.loads(ours.recv_bytes())
    except EOFError:
        raise SystemExit(f"{cell.name} failed: see above") from None
    finally:
        child.join()
    return found


def _train_and_send(config: RunConfig, cell: Cell, pipe: Any) -> None:
    pipe.send_bytes(json.dumps(train_cell(config, cell)).encode())


def _begin_measuring(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    return _memory("VmRSS:")


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return _memory("VmHWM:")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(name))
    return int(found.split()[1]) * 1024


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether this process alone holds a lock, until the end of the block."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def compare(
    grid: Grid, methods: Sequence[str], batches: Sequence[int], given: argparse.Namespace, say: Say
) -> list[dict[str, Any]]:
    """Trials of every method and batch, then the seeds of the best: a row each.

    Seeds come one after the other, so that a grid that is stopped has compared all methods.
    """
    trials: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for batch in batches:
        for method in methods:
            cells = [
                Cell(method, batch, rate, beta, TRIAL_SEED, given.trial_steps, is_trial=True)
                for rate in given.rates
                for beta in given.betas
            ]
            ran = [grid.run(cell, say) for cell in cells]
            trials[batch, method] = [found for found in ran if found is not None]
    num_trials = len(given.rates) * len(given.betas)
    rows: list[dict[str, Any]] = [
        {"method": method, "batch": batch, "trials": done, "runs": []}
        for (batch, method), done in trials.items()
        if len(done) == num_trials
    ]
    for seed in given.seeds:
        for row in rows:
            best = max(row["trials"], key=lambda found: found["validation"]["mrr@10"])["cell"]
            cell = Cell(row["method"], row["batch"], best["rate"], best["beta"], seed, given.steps)
            if (found := grid.run(cell, say)) is not None:
                row["runs"].append(found)
    return [row for row in rows if row["runs"]]


def taken(path: Path, num: int, work: Path) -> Path:
    """A file with some of the pairs of another, spread over it."""
    import numpy as np
    import pyarrow.parquet as parquet

    out = work / f"{path.stem}-{num}.parquet"
    if not out.exists():
        whole = parquet.read_table(path)
        rows = np.linspace(0, len(whole) - 1, min(num, len(whole))).astype(np.int64)
        partial = out.with_suffix(".partial")
        parquet.write_table(whole.take(rows), partial)
        partial.replace(out)
    return out


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=ABOUT)
    parser.add_argument("data", type=Path, help="a Parquet file of pairs, with a column split")
    parser.add_argument("--work", type=Path, required=True, help="keep finished runs here")
    parser.add_argument("--out", type=Path, help="write the results to this folder")
    parser.add_argument("--name", default="debian", help="of the data, for the results")
    parser.add_argument("--query", default="synopsis", help="the column of queries")
    parser.add_argument("--item", default="description", help="the column of items")
    parser.add_argument("--items", type=int, help="take so many pairs, spread over the file")
    parser.add_argument("--model", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--max-tokens", type=int, default=128, help="of texts, with --model")
    parser.add_argument("--method", action="append", choices=METHODS, help="all by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--trial-steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--betas", type=float, nargs="+", default=[10.0, 20.0, 40.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = parsed(words)
    given.work.mkdir(parents=True, exist_ok=True)
    say = say_to_console()
    path = taken(given.data, given.items, given.work) if given.items else given.data
    split = {"kind": "column", "column": "split", "validation": ["dev"]}
    data = {"kind": "text-pairs", "path": [str(path)], "query": given.query, "item": given.item,
            "split": split}  # fmt: skip
    small = given.model is None
    encoder = Encoder.small() if small else Encoder.folder(given.model, given.max_tokens)
    until = time.monotonic() + 60 * given.minutes if given.minutes else _NO_MORE
    grid = Grid(data, encoder, given.device, given.work, until)
    rows = compare(grid, given.method or list(METHODS), given.batch, given, say)
    if not rows:
        say("no method has been trained yet: run the command again")
        return
    facts = environment()
    if not str(build_device(given.device)).startswith("cuda"):
        facts.pop("gpu", None)
    results = {
        "benchmark": NAME,
        "command": command_of(given, sys.argv[1:] if words is None else words),
        "environment": facts,
        "encoder": encoder.name,
        "items": given.items,
        "seeds": len(given.seeds),
        "rates": given.rates,
        "betas": given.betas,
        "rows": rows,
    }
    page = results_page(f"{NAME}-{given.name}: {ABOUT}", results, table(results))
    say(page)
    if given.out is not None:
        write_results(given.out / results_stem(f"{NAME}-{given.name}", facts), results, page)


def command_of(given: argparse.Namespace, words: Sequence[str]) -> str:
    """The command as others type it: folders of one machine are named by what they hold."""
    names = {str(given.data): "DATA", str(given.work): "CELLS", str(given.model): "MODEL",
             str(given.out): "RESULTS"}  # fmt: skip
    shown = shlex.join(names.get(word, word) for word in words)
    return f"python -m benchmarks.negatives.text_grid {shown}"


if __name__ == "__main__":
    main()
