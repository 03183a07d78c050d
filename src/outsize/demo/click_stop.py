"""Stop 1: a click model, end to end."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.demo.shown import introduce, print_table
from outsize.reporting.quantities import format_bytes
from outsize.training import load_config, train
from outsize.training.metric_names import number_of

_QUICK = ("data.num_train=20_000", "data.num_validation=5_000", "data.num_test=5_000",
          "data.largest_vocabulary=1_000", "train.validate_every=5")  # fmt: skip


def click_stop(out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """A DLRM trained on a synthetic click log, end to end."""
    with as_file(files("outsize.demo") / "click.toml") as path:
        config = load_config(path, _QUICK if quick else ())
    introduce(
        console,
        "Stop 1: a click model",
        "A click log is made on the fly: 13 numbers and 26 ids per example, Zipf-skewed, in "
        "planted clusters. Labels come from a known probability, so the best loss any model "
        "can reach (Bayes) is known. A DLRM learns it; its rows are in a store, "
        "trained by row-wise Adagrad.",
    )
    result = train(config, out, quiet=console.quiet)
    shown = {"DLRM, test": ("loss", "auc"), "best reachable (Bayes)": ("bayes_loss", "bayes_auc")}
    rows = [
        (label, *(number_of(result.test[name], ".4f") for name in names))
        for label, names in shown.items()
    ]
    print_table(console, ("", "log loss", "AUC"), rows)
    memory = result.memory
    console.print(
        f"embeddings: {memory.num_parameters:,} parameters, {format_bytes(memory.total_bytes)} "
        f"with clocks and optimizer state\nlook at: {out / 'report.html'}"
    )
    return result.summary()
