"""Probed clustering against plain CCE: blocks, passes, rates, when, how often, helper or none.

    python -m benchmarks.cce.probes RUN.toml --budgets 2048,8192,32768 --seeds 3 --work DIR

Every variant is the run with CCE tables and the settings named in `VARIANTS`. The controls train
without probes, two of them longer: 15 epochs are as many visits as the probes of MovieLens make,
and twice the run's own length is the most that probes of a short run may. CPU seconds and the peak
of resident memory are those of a cell's own process, so that cells may run side by side.
Finished cells are kept in `--work`, so an interrupted grid continues where it stopped. Choose on
data whose test split is apart (`--set data.held_out='"split"'`), report by the run's own protocol.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.het.staleness_runs import train_cells
from benchmarks.runner import typed_command, write_page
from outsize.data.synthetic import SyntheticConfig
from outsize.training import load_config
from outsize.training.config import TrainConfig
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

VARIANTS: dict[str, list[str]] = {
    "full tables": ["embeddings.method=full", f"embeddings.max_params={1 << 40}"],
    "no probe": [],
    "no probe, as many visits": ["train.epochs=15"],
    "no probe, twice as long": ["TWICE"],
    "probe = true": ["probe=true"],
    "rate 0.1": ["probe={rate=0.1}"],
    "rate 0.03": ["probe={rate=0.03}"],
    "rate 0.3": ["probe={rate=0.3}"],
    "1 block": ["probe={rate=0.1, blocks=1}"],
    "2 blocks": ["probe={rate=0.1, blocks=2}"],
    "32 blocks": ["probe={rate=0.1, blocks=32}"],
    "2 passes": ["probe={rate=0.1, passes=2}"],
    "half of the visits": ["probe={rate=0.1, visits=1.0}"],
    "1 clustering": ["count=1", "probe={rate=0.1}"],
    "3 clusterings": ["count=3", "probe={rate=0.1}"],
    "3 clusterings, rest 0.3": ["count=3", "rest=0.3", "probe={rate=0.1}"],
    "3 clusterings, rest 0.1": ["count=3", "rest=0.1", "probe={rate=0.1}"],
    "helper at the end": ["probe={rate=0.1, helper=true}"],
    "ids weighed alike": ["weighted=false", "probe={rate=0.1}"],
    "8 columns": ["embeddings.columns=8", "probe={rate=0.1}"],
}


def settings_of(variant: str, budget: int, seed: int, train: TrainConfig) -> list[str]:
    """The settings of a cell; a name without a section is one of `embeddings.recluster`."""
    cap = [f"embeddings.max_params={budget}", f"seed={seed}"]
    if VARIANTS[variant] == ["TWICE"]:
        own = [f"train.epochs={2 * train.epochs}"]
        own += [] if train.steps is None else [f"train.steps={2 * train.steps}"]
        return ["embeddings.kind=tables", "embeddings.method=cce", *cap, *own]
    own = [
        word if "." in word.partition("=")[0] else f"embeddings.recluster.{word}"
        for word in VARIANTS[variant]
    ]
    return ["embeddings.kind=tables", "embeddings.method=cce", *cap, *own]


def one_run(
    say: Callable[[str], None], run: str, settings: list[str], **cell: Any
) -> dict[str, Any]:
    """Train a cell in a process of its own; its metrics, and what its probes cost."""
    train = load_config(run, settings).train
    own = settings_of(cell["variant"], cell["budget"], cell["seed"], train)
    config = load_config(run, [*settings, *own])
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "run.toml", Path(folder) / "run"
        file.write_text(to_toml(encode(config)))
        words = [sys.executable, "-m", "outsize", "train", str(file), "--out", str(out), "--json"]
        done = _measured(words, Path(folder))
        if done.returncode:
            raise RuntimeError(f"{cell} failed:\n{done.errors[-3000:]}")
        summary, lines = json.loads(done.output), list(RunFolder(out).metrics())
    probes = [line for line in lines if line["split"] == "probe" and "skipped" not in line]
    found = {
        "validation_auc": summary["validation"]["auc"],
        "auc": summary["test"]["auc"],
        "loss": summary["test"]["loss"],
        "elapsed_s": summary["elapsed_s"],
        "cpu_s": done.cpu_s,
        "peak_bytes": done.peak_bytes,
        "probe_s": sum(line["seconds"] for line in probes),
        "probe_visits": sum(line["visits"] for line in probes),
        "probe_bytes": max((line["extra_bytes"] for line in probes), default=0),
        "rates": [line["rate"] for line in probes],
        "kept": [line["kept"] for line in probes],
        "num_skipped": sum("skipped" in line for line in lines),
        "gained": [line["gained"] for line in probes],
        "gained_in_training": [line["gained_in_training"] for line in probes],
    }
    say(f"{cell['variant']}, {cell['budget']:,}, seed {cell['seed']}: AUC {found['auc']:.4f}, "
        f"{found['elapsed_s']:.0f} s")  # fmt: skip
    return found


class Measured(NamedTuple):
    """A process that has ended, and what it took."""

    returncode: int
    output: str
    errors: str
    cpu_s: float
    peak_bytes: int


def _measured(words: list[str], folder: Path) -> Measured:
    """Run a command with one torch thread; its CPU seconds and its peak of resident memory."""
    output, errors = folder / "output", folder / "errors"
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with output.open("w") as out, errors.open("w") as err:
        process = subprocess.Popen(words, env=env, stdout=out, stderr=err)
        _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measured(
        process.returncode,
        output.read_text(),
        errors.read_text(),
        round(use.ru_utime + use.ru_stime, 2),
        use.ru_maxrss * 1024,
    )


def main() -> None:
    """Run the grid and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", default="2048,8192,32768")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="names, by commas")
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1))
    parser.add_argument("--work", type=Path, default=Path("runs/cce-probes"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", help="the end of the results' name; by default that of the run")
    arguments = parser.parse_args()
    data = load_config(arguments.run, arguments.set).data
    data.build()  # encode before several runs want it
    budgets = [int(word) for word in arguments.budgets.split(",")]
    variants = _chosen(arguments.variants)
    cells = [
        {"num_ranks": 1, "run": str(arguments.run), "settings": arguments.set,
         "variant": variant, "budget": budget, "seed": seed}
        for seed in range(arguments.seeds) for variant in variants for budget in budgets
    ]  # fmt: skip
    rows = train_cells(cells, lambda text: print(text, flush=True), arguments.work, arguments.jobs,
                       one_run)  # fmt: skip
    planted = isinstance(data, SyntheticConfig) and data.individuality < 1
    body = table(rows, variants, budgets, planted)
    title = f"Probed clustering: {arguments.run.name}"
    name = f"cce-probes-{arguments.name or arguments.run.stem}"
    command = typed_command("benchmarks.cce.probes")
    write_page(name, title, command, body, arguments.out, rows=rows)


def _chosen(text: str) -> list[str]:
    """The variants that a list names; their own names may have commas."""
    rest, found = f",{text},", set()
    for name in sorted(VARIANTS, key=len, reverse=True):  # one name may begin another
        if f",{name}," in rest:
            rest = rest.replace(f",{name},", ",,")
            found.add(name)
    if not found:
        raise SystemExit(f"none of {text!r} is a variant: {', '.join(map(repr, VARIANTS))}")
    return [name for name in VARIANTS if name in found]


def table(
    rows: list[dict[str, Any]], variants: list[str], budgets: list[int], planted: bool
) -> str:
    """The results as Markdown.

    Args:
        rows: The cells.
        variants: The variants, in their order.
        budgets: The budgets, in their order.
        planted: Whether the data is synthetic, and its ids have planted clusters.
    """
    log = "The log is synthetic, and its ids have planted clusters. " if planted else ""
    seeds = sorted({row["seed"] for row in rows})
    lines = [
        f"{log}Test AUC at the best validation, mean (range) of the seeds "
        f"{', '.join(map(str, seeds))}; caps in parameters per table. CPU seconds and the peak of "
        "resident memory are means of "
        "whole runs at the first cap, visits the examples that probes read there, extra MB the "
        "most of a probe's rows, moments and indices. Used are probes whose rows tables were "
        "clustered by, of those made in all runs at all caps; one that is not used ends the "
        "probes of its run.\n",
        f"| variant | {' | '.join(f'{budget:,}' for budget in budgets)} | CPU s | peak MB | "
        "probe visits | extra MB | rates | used |",
        "|---|" + "--:|" * (len(budgets) + 6),
    ]
    for variant in variants:
        found = [[row for row in rows if (row["variant"], row["budget"]) == (variant, budget)]
                 for budget in budgets]  # fmt: skip
        first = found[0]
        seconds = statistics.mean(row["cpu_s"] for row in first)
        peak = statistics.mean(row["peak_bytes"] for row in first)
        visits = statistics.mean(row["probe_visits"] for row in first)
        rates = sorted({rate for row in first for rate in row["rates"]})
        kept = [is_kept for cells in found for row in cells for is_kept in row["kept"]]
        used = f"{sum(kept)} of {len(kept)}" if kept else ""
        lines.append(
            f"| {variant} | {' | '.join(map(_spread, found))} | {seconds:.0f} | {peak / 1e6:.0f} | "
            f"{visits:,.0f} | {first[0]['probe_bytes'] / 1e6:.2f} | {' '.join(map(str, rates))} | "
            f"{used} |"
        )
    return "\n".join(lines) + "\n"


def _spread(cells: list[dict[str, Any]]) -> str:
    """Mean and range of the AUC."""
    values = [cell["auc"] for cell in cells]
    return f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    main()
