"""A negative cache shared by real ranks over gloo."""

import subprocess
import sys
from pathlib import Path

import torch

from outsize.negatives import NegativeCache, load_cache

SCRIPT = Path(__file__).parents[2] / "ranks" / "check_negatives.py"
FEATURES = {"id": ((), torch.int64), "tokens": ((3,), torch.int16)}


def launch(ranks, *words):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={ranks}"]  # fmt: skip
    done = subprocess.run([*launcher, SCRIPT, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has passed") == ranks


def test_ranks_draw_feed_and_save_a_cache_together_and_others_load_it(tmp_path):
    launch(2, "save", tmp_path)
    launch(3, "load", tmp_path)
    alone = NegativeCache(12, 4, FEATURES, precision="bfloat16")
    assert load_cache(alone, tmp_path / "cache") == 0
    assert sorted(alone.keys.tolist()) == list(range(12))
    assert torch.equal(alone.items.feature_id, alone.keys)
    assert alone.ages().sum() == 10
