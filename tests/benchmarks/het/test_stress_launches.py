"""Launches that lose a rank end, as a user would start them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.het.stress_launches import STEM

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.slow
def test_launches_that_lose_a_rank_end_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.het.stress_launches", "--launches", "8",
         "--kill-share", "1", "--jobs", "2", "--out", tmp_path],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=3000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / f"{STEM}.json").read_text())
    everything = results["rows"][-1]
    assert everything["launches"] == 8
    assert everything["hung"] == everything["with a traceback"] == 0
    assert "| all | 8 |" in (tmp_path / f"{STEM}.md").read_text()
