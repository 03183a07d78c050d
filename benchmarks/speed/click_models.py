"""Every click model on real data sets, three seeds each, beside logistic regression.

    python -m benchmarks.speed.click_models DATA --out benchmarks/results

DATA is a folder with the files that `examples/real/*.toml` name. Each run trains from that run
file with the model replaced, and reports the test metrics at its best validation. Finished runs
are kept in `--work`, so an interrupted grid continues where it stopped.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.runner import write_page

EXAMPLES = Path(__file__).parents[2] / "examples" / "real"
# Settings in addition to those of the run file. A row of Wide & Deep and DeepFM is a vector of 16
# and a weight; the weights of a logistic regression are rows of dim 1 and need larger steps.
MODELS = {
    "logistic": ["embeddings.dim=1", "embeddings.optimizer.learning_rate=0.5",
                 "optimizer.learning_rate=0.02"],
    "dlrm": ["embeddings.dim=16"],
    "wide-deep": ["embeddings.dim=17"],
    "deepfm": ["embeddings.dim=17"],
    "dcn": ["embeddings.dim=16"],
    "dcnv2": ["embeddings.dim=16"],
}  # fmt: skip
# GMF takes exactly two features.
GMF = {
    "gmf": ["embeddings.dim=32", 'data.categorical=["user_id", "movie"]', "data.multi_valued=[]"]
}
DATA_SETS = {
    "sba_loans": ("sba_loans.parquet", MODELS),
    "us_flights": ("us_flights_2024_01.parquet", MODELS),
    "ml1m_features": ("ml1m.parquet", {**MODELS, **GMF}),
}


def train(arguments: argparse.Namespace, data_set: str, model: str, seed: int) -> dict[str, Any]:
    """The summary of one run, read from its file if the run is finished."""
    done = arguments.work / f"{data_set}-{model}-{seed}.json"
    if not done.exists():
        file, models = DATA_SETS[data_set]
        settings = [f'data.path=["{arguments.data / file}"]', f"model.kind={model}", f"seed={seed}",
                    f'data.cache="{arguments.work / "cache"}"', *models[model],
                    *arguments.set]  # fmt: skip
        words = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "outsize", "train", EXAMPLES / f"{data_set}.toml", *words,
                   "--out", done.with_suffix(""), "--json"]  # fmt: skip
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(f"{done.stem}: {ran.stderr[-2000:]}")
        done.write_text(ran.stdout)
    summary: dict[str, Any] = json.loads(done.read_text())
    return summary


def main() -> None:
    """Run the grid and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=Path("runs/click-models"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="override a setting of all runs")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    cells = [(data_set, m) for data_set, (_, models) in DATA_SETS.items() for m in models]
    for data_set, model in cells:  # encode before several runs need the same data
        if model in ("logistic", "gmf"):
            train(arguments, data_set, model, 0)
    with ThreadPoolExecutor(arguments.workers) as pool:
        runs = {
            cell: [pool.submit(train, arguments, *cell, seed) for seed in range(arguments.seeds)]
            for cell in cells
        }
        results = {cell: [run.result() for run in each] for cell, each in runs.items()}
    rows = [row(cell, each) for cell, each in results.items()]
    command, title = "python -m benchmarks.speed.click_models DATA", "every model on real data"
    body = table(rows, arguments.seeds)
    write_page("click-models", f"click-models: {title}", command, body, arguments.out, rows=rows)


def row(cell: tuple[str, str], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and range over seeds."""
    data_set, model = cell
    steps = [run["steps"] for run in runs]
    found: dict[str, Any] = {"data_set": data_set, "model": model, "steps": steps}
    for name in ("auc", "loss", "calibration"):
        values = [run["test"][name] for run in runs]
        found[name] = {"mean": statistics.mean(values), "min": min(values), "max": max(values)}
    found["elapsed_s"] = statistics.mean(run["elapsed_s"] for run in runs)
    return found


def table(rows: list[dict[str, Any]], seeds: int) -> str:
    """The results as Markdown."""
    lines = [
        f"Test metrics at the best validation, mean of {seeds} seeds (range).\n",
        "| data | model | AUC | log loss | calibration |",
        "|---|---|--:|--:|--:|",
    ]
    for row in rows:
        auc, loss = (
            f"{row[n]['mean']:.4f} ({row[n]['min']:.4f} to {row[n]['max']:.4f})"
            for n in ("auc", "loss")
        )
        lines.append(f"| {row['data_set']} | {row['model']} | {auc} | {loss} | "
                     f"{row['calibration']['mean']:.3f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
