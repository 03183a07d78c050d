"""A stop that is asked for amid long work: noticed there, saved, and resumed to the same end."""

import itertools
import signal
import time

import pytest
import torch
from processes import Started
from retrieval_runs import Writes, make_config, make_loop, without_strays
from test_loop import assert_same_tree, curve, final_weights

import outsize
import outsize.training.report
from outsize.checkpoint import latest_checkpoint
from outsize.interrupts import StopRequested, stopping_when
from outsize.models import TwoTower
from outsize.negatives import contract
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml


@pytest.fixture
def short_pieces(monkeypatch):
    """Long work in short pieces, and no figures."""
    monkeypatch.setattr(contract, "ENCODED_AT_ONCE", 6)
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)


def train_until_asked(config, out, asks):
    """Train until `asks` is true where a piece of long work asks it, and say whether it was."""
    folder = RunFolder(out)
    folder.begin(config)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, Writes(folder))
        with stopping_when(asks):
            try:
                loop.fit()
            except (KeyboardInterrupt, StopRequested):
                return True
    return False


@pytest.mark.parametrize(
    "settings",
    [
        ("negatives.refresh=0.2",),
        ("negatives.kind=top-items", "negatives.refresh_every=4", "negatives.num_candidates=9"),
    ],
    ids=["sweep", "index"],
)
def test_a_run_stopped_amid_any_long_work_resumes_to_the_same_end(tmp_path, settings, short_pieces):
    config = without_strays("train.epochs=1", "train.validate_every=5", *settings)
    outsize.train(config, tmp_path / "whole", quiet=True)
    counted = itertools.count(1)
    assert not train_until_asked(config, tmp_path / "counted", lambda: next(counted) < 0)
    num_asked = next(counted)
    assert num_asked > 40
    for stop in range(2, num_asked, max(1, num_asked // 5)):
        asked = itertools.count(1)
        out = tmp_path / f"stopped-{stop}"
        assert train_until_asked(config, out, lambda at=stop, it=asked: next(it) >= at)
        assert next(asked) <= stop + 2  # no piece is begun after it
        outsize.train(config, out, resume=True, quiet=True)
        assert curve(out) == curve(tmp_path / "whole")
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))
        newest = [latest_checkpoint(f / "checkpoint") for f in (out, tmp_path / "whole")]
        name = "cache-00000-of-00001.safetensors"
        assert (newest[0] / name).read_bytes() == (newest[1] / name).read_bytes()


def test_a_resumed_run_encodes_no_item_that_its_checkpoint_has(tmp_path, monkeypatch):
    config = make_config("train.epochs=1", "train.steps=7")
    outsize.train(config, tmp_path, quiet=True)
    num_encoded = []
    encode_items = TwoTower.encode_items

    def counting(model, features):
        num_encoded.append(len(features["item"]))
        return encode_items(model, features)

    monkeypatch.setattr(TwoTower, "encode_items", counting)
    outsize.train(config, tmp_path, resume=True, quiet=True)  # nothing is left to train
    assert num_encoded == []
    make_loop(config).begin()
    assert num_encoded == [50]


SLOW = """
import sys, time
import outsize.cli
from outsize.models import TwoTower
from outsize.negatives import contract

contract.ENCODED_AT_ONCE = 1
encode_items = TwoTower.encode_items

def slowly(model, features):
    if len(features["item"]) == 1:  # a piece of a fill or of an evaluation, not a batch
        time.sleep(0.3)
        print("piece", file=log, flush=True)
    return encode_items(model, features)

log = open(sys.argv[1], "a")
TwoTower.encode_items = slowly
sys.argv = ["outsize", *sys.argv[2:]]
outsize.cli.main()
"""


@pytest.mark.parametrize("during", ["the fill", "the evaluation"])
def test_sigterm_stops_a_slow_encoding_of_the_corpus_between_pieces(during, tmp_path):
    script, run, log, out = (tmp_path / name for name in ("slow.py", "run.toml", "log", "out"))
    script.write_text(SLOW)
    settings = ["train.epochs=1", "train.steps=2", "train.log_every=1", "data.num_items=400",
                "train.batch_size=8", "data.items_per_query=3"]  # fmt: skip
    if during == "the evaluation":
        settings.append("negatives.kind=in-batch")
    run.write_text(to_toml(encode(without_strays(*settings))))
    process = Started([script, log, "train", run, "--out", out])

    def num_pieces():
        return len(log.read_text().splitlines()) if log.exists() else 0

    while num_pieces() < 3 and process.poll() is None:
        time.sleep(0.05)
    before = num_pieces()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert num_pieces() <= before + 3  # of 400, which take two minutes
    saved = latest_checkpoint(out / "checkpoint") if (out / "checkpoint").exists() else None
    assert (saved is not None) == (during == "the evaluation")
