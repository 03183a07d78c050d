"""Product quantization of full tables after training, at the caps of `outsize compare`.

    python -m benchmarks.cce.quantize_after_training RUN.toml --budgets 2048,8192 --seeds 3

For each seed the run is trained with full tables. Then every table above the cap is replaced by its
product quantization with as many codes as fit the cap, and the model is evaluated without further
training. Codes are fitted twice: with all ids weighted equally, and weighted by how often they
occur.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import outsize
from benchmarks.runner import typed_command, write_page
from outsize.contracts import EmbeddingTable
from outsize.training import load_config
from outsize.training.tasks import ClickTask


def main() -> None:
    """Train, quantize, evaluate, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--budgets", default="2048,8192,32768,131072")
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="override a setting")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    budgets = [int(word) for word in arguments.budgets.split(",")]
    rows = [row for seed in range(arguments.seeds) for row in one_seed(arguments, seed, budgets)]
    command = typed_command("benchmarks.cce.quantize_after_training")
    title = f"Product quantization after training: {arguments.run.name}"
    name, body = f"quantize-{arguments.run.stem}", table(arguments, rows, budgets)
    write_page(name, title, command, body, arguments.out, rows=rows)


def one_seed(arguments: argparse.Namespace, seed: int, budgets: list[int]) -> list[dict[str, Any]]:
    """Test metrics of full tables and of their quantization at every budget."""
    settings = ["embeddings.kind=tables", "embeddings.method=full", f"seed={seed}", *arguments.set]
    config = load_config(arguments.run, settings)
    trained = outsize.train(config, quiet=True).model
    task = ClickTask(config)
    task.model.load_state_dict(trained.state_dict())
    tables = task.model.embeddings.tables
    assert tables is not None
    full: dict[str, EmbeddingTable] = {
        name: table for name, table in tables.items() if isinstance(table, EmbeddingTable)
    }
    counts = task.data.count_ids(task.data.num_examples("train"))
    rows = [{"seed": seed, "budget": None, "weighted": False, **task.evaluate("test")}]
    for budget in budgets:
        for weighted in (False, True):
            for name, table in full.items():
                tables[name] = table
                codes = budget // table.spec.dim
                if table.spec.num_rows > codes:
                    seen = counts[name] if weighted else None
                    tables[name] = outsize.quantize(
                        table, arguments.columns, codes, counts=seen, seed=seed
                    )
            use = task.model.embeddings.memory_use()
            rows.append(
                {
                    "seed": seed,
                    "budget": budget,
                    "weighted": weighted,
                    "params": use.num_parameters,
                    "total_bytes": use.total_bytes,
                    **task.evaluate("test"),
                }
            )
    return rows


def table(arguments: argparse.Namespace, rows: list[dict[str, Any]], budgets: list[int]) -> str:
    """The results as Markdown."""
    lines = [
        f"Test metrics of the last step, mean of {arguments.seeds} seeds (range), "
        f"{arguments.columns} columns; caps in parameters per table.\n",
        "| cap | codes fitted | BCE | AUC | parameters | bytes |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for budget in [None, *budgets]:
        for weighted in (False, True):
            cells = [r for r in rows if (r["budget"], r["weighted"]) == (budget, weighted)]
            if not cells:
                continue
            cap = "none (full)" if budget is None else f"{budget:,}"
            how = "" if budget is None else "by frequency" if weighted else "equally"
            sizes = [f"{cells[0].get(name, 0):,}" for name in ("params", "total_bytes")]
            lines.append(
                f"| {cap} | {how} | {spread(cells, 'loss')} | {spread(cells, 'auc')} | "
                f"{' | '.join(sizes)} |"
            )
    return "\n".join(lines) + "\n"


def spread(cells: list[dict[str, Any]], name: str) -> str:
    """Mean and range."""
    values = [cell[name] for cell in cells]
    return f"{statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


if __name__ == "__main__":
    main()
