"""A negative cache shared by real ranks over gloo."""

from pathlib import Path

import torch
from processes import run_ranks

from outsize.negatives import NegativeCache, load_cache

SCRIPT = Path(__file__).parents[2] / "ranks" / "check_negatives.py"
FEATURES = {"id": ((), torch.int64), "tokens": ((3,), torch.int16)}


def launch(ranks, *words):
    code, output, errors = run_ranks(ranks, SCRIPT, *words)
    assert code == 0, errors
    assert output.count("has passed") == ranks


def test_ranks_draw_feed_and_save_a_cache_together_and_others_load_it(tmp_path):
    launch(2, "save", tmp_path)
    launch(3, "load", tmp_path)
    alone = NegativeCache(12, 4, FEATURES, precision="bfloat16")
    assert load_cache(alone, tmp_path / "cache") == 0
    assert sorted(alone.keys.tolist()) == list(range(12))
    assert torch.equal(alone.items.feature_id, alone.keys)
    assert alone.ages().sum() == 10
