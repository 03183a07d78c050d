"""Runs that probe, on several ranks: equal ranks, NaN refused by all, killed and resumed."""

import signal
from pathlib import Path

import pytest
import torch
from launching import RUN, final_weights
from processes import Ranks, run_ranks

from outsize.training.run_folder import RunFolder

TABLES = """
[embeddings.recluster]
count = 2
probe = {blocks = 3}
"""
KILLED = """
import os, runpy, signal
from outsize.tables import Probe, ProbeBlock
begin, step, number = Probe.__init__, ProbeBlock.step, [0, 0]

def counted(probe, *arguments, **options):
    number[:] = number[0] + 1, 0
    begin(probe, *arguments, **options)

def last_step(block, loss):
    step(block, loss)
    number[1] += 1
    last = [int(os.environ["KILLED_PROBE"]), 5]
    if number == last and os.environ["RANK"] == os.environ["KILLED"]:
        os.kill(os.getpid(), signal.SIGKILL)

Probe.__init__, ProbeBlock.step = counted, last_step
runpy.run_module("outsize", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    tables = 'dim = 4\nkind = "tables"\nmethod = "cce"\nmax_params = 64\n' + TABLES
    path.write_text(RUN.format(num_train=505).replace("dim = 4\n", tables))
    return path


def test_ranks_are_equal_after_probes_and_refuse_nan_together(run_file):
    script = Path(__file__).parents[1] / "ranks" / "check_probed_run.py"
    code, output, errors = run_ranks(2, script, run_file)
    assert code == 0, errors
    assert output.count("has passed") == 2


@pytest.mark.parametrize(("epochs", "killed_probe"), [(1, 2), (2, 1)])
def test_a_run_killed_inside_a_probe_resumes_bit_identical(
    run_file, tmp_path, monkeypatch, epochs, killed_probe
):
    """SIGKILL ends the second rank among the steps of a probe; of two epochs, it is rejected."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    settings = ("train.batch_size=16", "train.deterministic=true", f"train.epochs={epochs}")
    words = ("train", run_file, *(word for setting in settings for word in ("--set", setting)))
    code, _, errors = run_ranks(2, "-m", "outsize", *words, "--out", whole)
    assert code == 0, errors
    monkeypatch.setenv("KILLED", "1")
    monkeypatch.setenv("KILLED_PROBE", str(killed_probe))
    ranks = Ranks(2, ["-c", KILLED, *words, "--out", cut])
    _, errors = ranks.communicate()
    assert ranks.ranks[1].returncode == -signal.SIGKILL, errors
    assert _num_probes(cut) == killed_probe - 1
    code, _, errors = run_ranks(2, "-m", "outsize", *words, "--out", cut, "--resume")
    assert code == 0, errors
    assert _num_probes(whole) == _num_probes(cut) == 2  # of two epochs, the second is skipped
    assert [line.get("kept") for line in _probes(cut)] == (
        [True, True] if epochs == 1 else [False, None]
    )
    assert _without_times(whole) == _without_times(cut)
    expected, found = final_weights(whole), final_weights(cut)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def _probes(folder):
    return [line for line in RunFolder(folder).metrics() if line["split"] == "probe"]


def _num_probes(folder):
    return len(_probes(folder))


def _without_times(folder):
    times = ("seconds", "train_s", "elapsed_s", "examples_per_s")
    return [{name: value for name, value in line.items() if name not in times}
            for line in RunFolder(folder).metrics()]  # fmt: skip
