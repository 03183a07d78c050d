"""Stores shared by real ranks over gloo."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "ranks" / "check_stores.py"


def test_shards_and_copies_keep_their_promises_on_four_ranks():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = subprocess.run([*launcher, SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("has passed") == 4
