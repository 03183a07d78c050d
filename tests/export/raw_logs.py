"""A small log of raw values, and runs on it."""

import csv
import random

from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override

COLUMNS = ("set", "label", "age", "price", "city", "zip", "paid", "tags")
SETS = ("train", "valid", "test")


def make_rows(num_rows=900, seed=0):
    """Rows of raw values, as a CSV file has them; a third of the last values are new."""
    draw = random.Random(seed)
    rows = []
    for number in range(num_rows):
        kind = SETS[0 if number < 600 else 1 if number < 750 else 2]
        city = draw.randrange(25 if kind == "train" else 40)
        age = draw.gauss(40, 10)
        clicked = draw.random() < (0.8 if city % 3 == 0 else 0.2)
        tags = [f"t{draw.randrange(9)}" for _ in range(draw.randrange(4))]
        rows.append({
            "set": kind, "label": str(int(clicked)),
            "age": "" if number % 17 == 0 else f"{age:.3f}",
            "price": f"{draw.expovariate(0.1) - 1:.2f}",
            "city": f"city {city}", "zip": f"{draw.randrange(60)}.0",
            "paid": str(draw.random() < 0.5), "tags": "|".join(tags),
        })  # fmt: skip
    return rows


def write_rows(path, rows, columns=COLUMNS):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_columns(rows, columns=COLUMNS):
    return {name: [row[name] or None for row in rows] for name in columns}


def make_config(path, *settings):
    tree = {
        "data": {
            "kind": "tabular", "path": [str(path)], "label": "label", "standardize": ["age"],
            "log1p": ["price"], "categorical": ["city", "zip", "paid"], "multi_valued": ["tags"],
            "vocabulary": {"hashed": ["tags"], "num_buckets": 20},
            "split": {"kind": "column", "column": "set", "validation": ["valid"], "test": ["test"]},
        },
        "model": {"bottom": [8], "top": [8]},
        "embeddings": {"dim": 4},
        "train": {"batch_size": 64, "epochs": 2, "eval_batch_size": 64},
    }  # fmt: skip
    return decode(RunConfig, override(tree, settings), "test")


KINDS = {
    "store": (),
    "tables": ("embeddings.kind=tables",),
    "compressed": ("embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=60"),
    "cached": ("embeddings.store=sharded", "embeddings.cache.share=0.2"),
}
ROWS = make_rows()
TEST_ROWS = [row for row in ROWS if row["set"] == "test"]
INPUTS = ("age", "price", "city", "zip", "paid", "tags")
