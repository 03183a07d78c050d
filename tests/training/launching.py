"""Runs on several ranks, as a user would start them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from processes import run_ranks
from safetensors.torch import load_file

from outsize.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint
from outsize.training.run_folder import RunFolder

RUN = """
[data]
num_train = {num_train}
num_validation = 101
num_test = 55
num_dense = 3
num_categorical = 4
largest_vocabulary = 200
[model]
bottom = [8]
top = [8]
[embeddings]
dim = 4
[train]
epochs = 2
validate_every = 7
log_every = 5
clip_norm = 0.3
early_stop = false
[checkpoint]
every = 6
"""


def launch(ranks, *words, options=()):
    """Start a module on several ranks with torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", str(ranks), *options]  # fmt: skip
    return subprocess.Popen([*launcher, *map(str, words)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)  # fmt: skip


def final_weights(folder):
    """Dense weights and all rows with their state, of the newest checkpoint."""
    newest = latest_checkpoint(folder / "checkpoint")
    weights = dict(load_checkpoint(newest)["model"])
    for path in newest.glob("rows-*.safetensors"):
        weights |= load_file(path)
    return weights


def curve(folder):
    """Step, split and loss of every line that has a loss."""
    lines = RunFolder(folder).metrics()
    return [(line["step"], line["split"], line["loss"]) for line in lines if "loss" in line]


def pid_of_rank(launcher, rank):
    """The process that a launcher started as one of its ranks."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    wanted = f"RANK={rank}".encode()
    (pid,) = [c for c in children if wanted in Path(f"/proc/{c}/environ").read_bytes().split(b"\0")]
    return int(pid)


def train_and_kill_a_rank(words, whole, killed):
    """Train on three ranks, and again with one that is killed; both runs end alike.

    Returns what the second run wrote to standard error.
    """
    code, _, errors = run_ranks(3, *words, "--out", whole)
    assert code == 0, errors
    process = launch(3, *words, "--out", killed, options=["--max-restarts", "1"])
    while not (killed / "checkpoint").is_dir() or not list_checkpoints(killed / "checkpoint"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(pid_of_rank(process.pid, 1), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "resumed at step" in errors
    assert curve(killed) == curve(whole)
    expected, found = final_weights(whole), final_weights(killed)
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    return errors
