"""Retrieval on several ranks."""

import json
import shutil

import pytest
import torch
from launching import final_weights
from processes import run, run_ranks
from retrieval_runs import PLAIN, make_config, without_strays
from test_loop import curve

from outsize.checkpoint import list_checkpoints
from outsize.training.strict_toml import encode, to_toml


@pytest.mark.parametrize(
    "settings",
    [
        # 360 pairs in batches of 46: 7 batches and 38, 19 for each rank.
        ["negatives.learn_beta=true", "train.batch_size=23"],
        ["negatives.kind=in-batch", "negatives.symmetric=true", "negatives.log_q=true",
         "train.batch_size=23"],
        pytest.param(
            ["embeddings.kind=tables", "optimizer.kind=sgd", "optimizer.learning_rate=0.1"],
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_two_ranks_equal_one_process_with_twice_the_batch(tmp_path, settings):
    config = without_strays("negatives.kind=exact", "train.batch_size=16", *settings)
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(config)))
    one, two = tmp_path / "one", tmp_path / "two"
    alone = run("-m", "outsize", "train", path, "--out", one,
                "--set", f"train.batch_size={2 * config.train.batch_size}")  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    code, output, errors = run_ranks(2, "-m", "outsize", "train", path, "--out", two, "--json")
    assert code == 0, errors
    assert json.loads(output)["stopped"] == "finished"
    for expected, found in zip(curve(one), curve(two), strict=True):
        assert expected.keys() == found.keys()
        for name in expected.keys() - {"split"}:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-6), name
    weights = [final_weights(folder) for folder in (one, two)]
    for (name, expected), (other, found) in zip(*(sorted(w.items()) for w in weights), strict=True):
        assert name == other
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_ranks_that_share_rows_and_a_cache_resume_to_the_same_end(tmp_path):
    # 305 pairs in batches of 38: the last is one pair, and leaves a rank without any.
    config = make_config(
        "embeddings.store=sharded", "embeddings.cache.share=0.5", "train.batch_size=19",
        "data.num_queries=61", "data.items_per_query=7",
        "embeddings.cache.read_staleness=0", "embeddings.cache.write_staleness=0",
        "checkpoint.keep=9", "train.epochs=2", *PLAIN,
    )  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(config)))
    out = tmp_path / "run"
    words = ["-m", "outsize", "train", path, "--json", "--out", out]
    code, _, errors = run_ranks(2, *words)
    assert code == 0, errors
    whole = curve(out)
    checkpoints = sorted((out / "checkpoint").iterdir())
    assert len(list(checkpoints[0].glob("cache-*-of-00002.safetensors"))) == 2
    forget_after(out, 12)
    code, _, errors = run_ranks(2, *words, "--resume")
    assert code == 0, errors
    drop = {"exchange_s"}
    kept = [[{k: v for k, v in line.items() if k not in drop} for line in lines]
            for lines in (whole, curve(out))]  # fmt: skip
    assert kept[0] == kept[1]
    forget_after(out, 12)
    alone = run(*words, "--resume", "--set", "train.batch_size=38")
    assert alone.returncode == 0, alone.stderr
    assert json.loads(alone.stdout)["steps"] == 18


def forget_after(out, step):
    """Remove the checkpoints of later steps."""
    for checkpoint in list_checkpoints(out / "checkpoint"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
