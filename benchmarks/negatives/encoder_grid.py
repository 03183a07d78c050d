"""Negatives for a fine-tuned text encoder: in-batch, the cache, CachedMNRL; two sets, three seeds.

    python -m benchmarks.negatives.encoder_grid MODEL debian.tokens pycode.tokens --cells CELLS \\
        --out benchmarks/results

The sets are files of `benchmarks.negatives.token_file`. Rate and β of each method and batch are
chosen by equal trials on the first set, on validation and a seed of their own. In-batch negatives
and the cache joined with them take batches of 32 and 128 on the first set, 128 on the second and
512 on one seed; `CachedMultipleNegativesRankingLoss` of sentence-transformers takes batches of 512
for as long as the cache at 128 does, in the memory of the cache.

Runs train side by side in several processes, and their times mean nothing; steps of every method
are timed alone, in turns, before the grid begins. What has ended is kept in the file CELLS, so a
grid that was stopped, by `--seconds` or otherwise, continues from there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.negatives.encoder_cells import Plan, fitted, timed_runs
from benchmarks.negatives.encoder_grid_results import table
from benchmarks.negatives.encoder_workers import Trainer, Workers
from benchmarks.negatives.token_file import Tokens
from outsize.bench.runner import results_page, results_stem, say_to_console, write_results
from outsize.files import append_line
from outsize.reporting.environment import environment

NAME = "text-encoder-negatives"
ABOUT = "ways of finding negatives for a fine-tuned text encoder"

_LONGEST_TIMING_S = 150.0  # then the grid begins beside it

Done = dict[str, dict[str, Any]]


def read_cells(path: Path) -> Done:
    """What has ended, by its key; a line that was cut off is left out."""
    found: Done = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[record["key"]] = record
    return found


class Records:
    """What has ended, in a file.

    Args:
        path: The file, with a line for each.
        say: Told of each that ends.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.done = read_cells(path)
        self._path, self._say = path, say
        self._began = time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):
            append_line(path, "\n")

    def add(self, name: str, record: dict[str, Any]) -> None:
        """Keep a result; an error is only told, so that the next start tries again."""
        at = f"{time.monotonic() - self._began:.0f} s"
        if "error" in record:
            self._say(f"{at} {name} failed: {record['error']}")
            return
        append_line(self._path, json.dumps(record) + "\n")
        self.done[record["key"]] = record
        self._say(f"{at} {_told(record)}")


def _told(record: dict[str, Any]) -> str:
    if record["key"] == "timing":
        return (
            "ms per step alone: "
            + ", ".join(
                f"{name} {at['ms']:.1f} ({at['peak_bytes'] / 2**30:.2f} GiB)"
                for name, at in record["timing"].items()
            )
            + "".join(f"\n{name} failed: {why}" for name, why in record["failed"].items())
        )
    scores = [record[split].get("mrr@10") for split in ("validation", "test")]
    shown = " / ".join(f"{score:.4f}" for score in scores if score is not None)
    run = record["run"]
    return f"{record['key']}: {shown}, {run['steps']} steps in {record['crowded_train_s']:.0f} s"


def train_grid(plan: Plan, trainer: Trainer, num: int, records: Records, until: float) -> None:
    """Train what is not done, in several processes, until a time of `time.monotonic`."""
    failed: set[str] = set()
    workers = Workers(trainer, num)

    def gather(timeout: float) -> None:
        for name, record in workers.ended(timeout):
            records.add(name, record)
            if "error" in record:
                failed.add(name)

    try:
        if "timing" not in records.done:
            workers.begin("timing", "time_alone", timed_runs(plan))
            gather(min(_LONGEST_TIMING_S, until - time.monotonic()))
        while time.monotonic() < until:
            timing = records.done.get("timing", {}).get("timing", {})
            for run in plan.ready(records.done):
                ready = fitted(run, timing)
                if ready and workers.has_idle and run.key not in workers.at_work | failed:
                    workers.begin(run.key, "train", ready)
            if not workers.at_work:
                return
            gather(until - time.monotonic())
    finally:
        workers.stop()


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=ABOUT)
    parser.add_argument("model", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("sets", type=Path, nargs=2, help="two files of tokens")
    parser.add_argument("--cells", type=Path, required=True, help="keep what has ended here")
    parser.add_argument("--out", type=Path, help="write the results to this folder")
    parser.add_argument("--max-tokens", type=int, default=64, help="as in the files of tokens")
    parser.add_argument("--batch", type=int, nargs=2, default=[32, 128])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--trial-steps", type=int, default=300)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4])
    parser.add_argument("--betas", type=float, nargs="+", default=[20.0, 40.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    given = parsed(words)
    until = time.monotonic() + given.seconds
    say = say_to_console()
    sets = {path.stem: path for path in given.sets}
    first, second = sets
    small, large = given.batch
    plan = Plan(
        first, second, small, large, given.steps, given.trial_steps, tuple(given.rates),
        tuple(given.betas), given.seeds,
    )  # fmt: skip
    records = Records(given.cells, say)
    trainer = Trainer(sets, given.model, given.max_tokens, given.device)
    train_grid(plan, trainer, given.workers, records, until)
    facts = environment()
    if not given.device.startswith("cuda"):
        facts.pop("gpu", None)
    results = {
        "benchmark": NAME,
        "command": "python -m benchmarks.negatives.encoder_grid MODEL "
        + " ".join(f"{name}.tokens" for name in sets) + " --cells CELLS",
        "environment": facts,
        "encoder": given.model.resolve().name,
        "max_tokens": given.max_tokens,
        "items": {name: len(Tokens.read(path).items) for name, path in sets.items()},
        "records": list(records.done.values()),
    }  # fmt: skip
    page = results_page(f"{NAME}: {ABOUT}", results, table(plan, records.done, results))
    say(page)
    if given.out is not None:
        write_results(given.out / results_stem(NAME, facts), results, page)


if __name__ == "__main__":
    main()
