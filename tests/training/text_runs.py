"""Small runs on texts whose queries and items have no word in common."""

import json
import random

from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override

BASE = {
    "data": {"kind": "text-pairs"},
    "model": {"kind": "text", "dim": 16, "max_words": 500, "min_count": 2, "num_buckets": 50},
    "negatives": {"kind": "in-batch"},
    "embeddings": {"dim": 16, "optimizer": {"learning_rate": 0.3}},
    "train": {"batch_size": 40, "epochs": 2, "validate_every": 7, "log_every": 5,
              "early_stop": False, "device": "cpu"},
    "checkpoint": {"every": 6},
}  # fmt: skip


def write_pairs(path, num_pairs=300, num_concepts=30):
    """Each concept has a word for queries and one for items: only training tells which."""
    draw = random.Random(0)
    lines = []
    for number in range(num_pairs):
        concepts = draw.sample(range(num_concepts), 3)
        query = " ".join(f"ask{c}" for c in concepts)
        item = " ".join(f"tell{c}" for c in draw.sample(concepts, 3)) + f" filler{number}"
        lines.append(json.dumps({"query": query, "item": item, "name": f"item {number}"}))
    path.write_text("\n".join(lines) + "\n")
    return path


def make_text_config(path, *settings):
    paths = json.dumps([str(path)])
    return decode(
        RunConfig, override(BASE, [f"data.path={paths}", "data.item_id=name", *settings]), "test"
    )
