"""What users of torchrun see: one line of a mistake, and one JSON object, over all ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outsize.launched import reason_of_failure

RANKS = Path(__file__).parent / "ranks"


def launch(*words, cwd):
    """Exit code, standard output and standard error of a command on two ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         *map(str, words)],
        cwd=cwd, capture_output=True, text=True, timeout=240, env=dict(os.environ),
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def lines_of(text, words):
    return [line for line in text.splitlines() if line.startswith("outsize: ") and words in line]


MISTAKES = {
    "a mistake in the run file": (["train", "run.toml"], "Did you mean 'vocabulary'?"),
    "a command for one process": (["export", "run", "out"], "start it without torchrun"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_once_and_closes_the_report_of_torchrun(tmp_path, name):
    words, expected = MISTAKES[name]
    (tmp_path / "run.toml").write_text("[data]\nvocabular = [3]\n")

    code, out, err = launch("-m", "outsize", *words, "--json", cwd=tmp_path)

    assert code != 0
    assert len(lines_of(err, expected)) == 1
    assert expected in "".join(err.splitlines()[-3:])
    assert expected in json.loads(out)["error"]


def test_a_mistake_of_one_rank_alone_is_told_by_that_rank(tmp_path):
    code, out, err = launch(RANKS / "fail_alone.py", cwd=tmp_path)

    assert code != 0
    assert len(lines_of(err, "rank 1 has no such data")) == 1
    assert "rank 1 has no such data" in "".join(err.splitlines()[-3:])
    assert json.loads(out) == {"error": "rank 1 has no such data"}


def test_what_all_ranks_came_to_is_one_object(tmp_path):
    (tmp_path / "run.toml").write_text(
        "[data]\nnum_train = 40\nnum_validation = 20\nnum_test = 20\nlargest_vocabulary = 30\n"
    )

    code, out, err = launch("-m", "outsize", "train", "run.toml", "--json", cwd=tmp_path)

    assert code == 0, err
    assert json.loads(out)["steps"] == 1


REPORT = "Root Cause (first observed failure):\n  rank      : 2\n  exitcode  : -6 (pid: 7)\n====\n"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (f"outsize: compiling kernels\nValueError: b\noutsize: no disk\n{REPORT}", "no disk"),
        (f"outsize: compiling kernels\nOSError: gone\nKeyError: c\n{REPORT}", "OSError: gone"),
        (f"outsize: compiling kernels\nAborted\n{REPORT}", "exitcode  : -6 (pid: 7)"),
        ("Killed\n\n", "Killed"),
        ("", "there was no output"),
    ],
)  # fmt: skip
def test_why_ranks_failed_is_found_in_what_they_printed(output, reason):
    assert reason_of_failure(output) == reason
