"""Every key of every section with odd values: a run is refused in a line, or ends with numbers."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.torture.odd_values import bases, cases, write_files

RUNNER = Path(__file__).parent / "odd_value_runs.py"
MOST_MB, MOST_CHARACTERS = 1200, 1000


def flaws_of(tried, folder):
    """What is wrong with how cases end, a line each."""
    write_files(folder)
    lines = [json.dumps([base, [f"{key}={value}"] if key else []]) for base, key, value in tried]
    done = subprocess.run(
        [sys.executable, str(RUNNER)], input="\n".join(lines), cwd=folder, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ends) == len(tried)
    return [
        f"{end['base']}, {str(end['settings'])[:90]}: {flaw}, {end['words'].strip()[-200:]}"
        for end in ends
        if (flaw := flaw_of(end))
    ]


def flaw_of(end):
    words = end["words"]
    if end["outcome"] not in ("refused", "trained"):
        return end["outcome"]
    if "\n" in words or len(words) > MOST_CHARACTERS:
        return "more than a line"
    return "too much memory" if end.get("peak_mb", 0) > MOST_MB else ""


def test_every_base_trains_as_it_is(tmp_path):
    write_files(tmp_path)
    lines = "\n".join(json.dumps([base, []]) for base in bases())
    done = subprocess.run(
        [sys.executable, str(RUNNER)], input=lines, cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(end["base"], end["outcome"], end["words"]) for end in ends] == [
        (base, "trained", "") for base in bases()
    ]


def test_a_sample_of_odd_values_is_refused_in_a_line_or_trains(tmp_path):
    assert flaws_of(random.Random(0).sample(cases(), 150), tmp_path) == []


@pytest.mark.slow
def test_every_odd_value_is_refused_in_a_line_or_trains(tmp_path):
    assert flaws_of(cases(), tmp_path) == []
