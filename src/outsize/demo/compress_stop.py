"""Stop 2: the same model with tables a fraction of their size."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.compare import Grid, compare
from outsize.demo.shown import introduce
from outsize.training import load_config

_QUICK = ("data.num_train=10_000", "data.num_validation=3_000", "data.num_test=3_000",
          "data.largest_vocabulary=1_000", "train.validate_every=5")  # fmt: skip
_METHODS = ("hash", "ce-concat", "cce")


def compress_stop(out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Three ways to compress tables at two budgets, compared with full tables."""
    with as_file(files("outsize.demo") / "compress.toml") as path:
        config = load_config(path, _QUICK if quick else ())
    introduce(
        console,
        "Stop 2: compressed tables",
        "Tables of up to 50,000 rows are trained in the space of 16 and of 64 rows. Hashing "
        "lets ids share rows at random; compositional embeddings build a vector from "
        "four shared pieces; CCE clusters the ids while it trains, so that similar "
        "ids share.",
    )
    grid = Grid(config, _METHODS, (256, 1024), num_seeds=1)
    return compare(grid, out, workers=0 if quick else None, quiet=console.quiet)
