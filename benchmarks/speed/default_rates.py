"""What the default learning rates of embeddings are worth, in stores and in tables.

    python -m benchmarks.speed.default_rates DATA --out benchmarks/results

DATA is a folder with the files that `examples/real/*.toml` name. A sample of each data set is
trained for one epoch, three seeds each, with everything else as a run has it by default.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import outsize
from benchmarks.runner import write_page

EXAMPLES = Path(__file__).parents[2] / "examples" / "real"
DATA_SETS = {"sba_loans": "sba_loans.parquet", "us_flights": "us_flights_2024_01.parquet"}
SETTINGS = {
    "DLRM, rows in a store (row-wise Adagrad, 0.05)": [],
    "DLRM, full tables (AdamW, 0.001)": ['embeddings={kind="tables"}'],
    "DLRM, full tables, embeddings.learning_rate = 0.01": [
        'embeddings={kind="tables", learning_rate=0.01}'
    ],
    "DLRM, full tables, embeddings.learning_rate = 0.03": [
        'embeddings={kind="tables", learning_rate=0.03}'
    ],
    "logistic, dim 1": ['model={kind="logistic"}', "embeddings={dim=1}"],
    "logistic, dim 16": ['model={kind="logistic"}', "embeddings={dim=16}"],
}
# Of the run files, only the columns and the split are used.
COMMON = ["model={}", "embeddings={}", "optimizer={}", "train={batch_size=512, epochs=1}"]


def main() -> None:
    """Train all cells and write their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--subsample", type=int, default=16, help="every n-th row is used")
    arguments = parser.parse_args()
    rows = [row(arguments, data_set, name) for data_set in DATA_SETS for name in SETTINGS]
    command = "python -m benchmarks.speed.default_rates DATA"
    title = "default-rates: embeddings in stores and in tables with default settings"
    body = table(rows, arguments.seeds)
    write_page("default-rates", title, command, body, arguments.out, rows=rows)


def row(arguments: argparse.Namespace, data_set: str, name: str) -> dict[str, Any]:
    """Mean and range over seeds of one setting on one data set."""
    found: dict[str, Any] = {"data_set": data_set, "setting": name}
    aucs: dict[str, list[float]] = {"validation": [], "test": []}
    for seed in range(arguments.seeds):
        settings = [f'data.path=["{arguments.data / DATA_SETS[data_set]}"]', f"seed={seed}",
                    f"data.subsample={arguments.subsample}", *COMMON, *SETTINGS[name]]  # fmt: skip
        config = outsize.load_config(EXAMPLES / f"{data_set}.toml", settings)
        result = outsize.train(config, quiet=True)
        for split, metrics in (("validation", result.best), ("test", result.test)):
            aucs[split].append(float(metrics["auc"] or 0.0))
        found["steps"] = result.steps
    for split, values in aucs.items():
        found[split] = {"mean": statistics.mean(values), "min": min(values), "max": max(values)}
    print(found, flush=True)
    return found


def table(rows: list[dict[str, Any]], seeds: int) -> str:
    """The results as Markdown."""
    lines = [
        f"AUC at the best validation, mean of {seeds} seeds (range); one epoch, batch 512.\n",
        "| data | setting | steps | validation | test |",
        "|---|---|--:|--:|--:|",
    ]
    for row in rows:
        columns = [
            f"{row[s]['mean']:.4f} ({row[s]['min']:.4f} to {row[s]['max']:.4f})"
            for s in ("validation", "test")
        ]
        facts = f"| {row['data_set']} | {row['setting']} | {row['steps']:,} | "
        lines.append(facts + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
