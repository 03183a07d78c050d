"""Whole runs whose rows are shared by ranks, with caches and without."""

import shutil
from pathlib import Path

import pytest
import torch
from launching import RUN, curve, final_weights, train_and_kill_a_rank
from processes import run, run_ranks

from outsize.checkpoint import list_checkpoints
from outsize.errors import ConfigError
from outsize.training import load_config
from outsize.training.run_folder import RunFolder

SHARDED = ["--set", "embeddings.store=sharded"]
CACHED = [*SHARDED, "--set", "embeddings.cache.share=0.2"]
OVERLAPPED = ["--set", "embeddings.overlap=true"]
NO_CLIPPING = ["--set", "train.clip_norm=1e9"]


def bounds(read, write, wire="float32"):
    return [*CACHED, "--set", f"embeddings.cache.read_staleness={read}",
            "--set", f"embeddings.cache.write_staleness={write}",
            "--set", f"embeddings.wire={wire}"]  # fmt: skip


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=505))
    return path


def train(ranks, run_file, out, *settings):
    code, _, errors = run_ranks(ranks, "-m", "outsize", "train", run_file, "--out", out,
                          "--set", "train.batch_size=16", *settings)  # fmt: skip
    assert code == 0, errors
    return curve(out)


def test_rows_in_shards_train_as_one_process_does(run_file, tmp_path):
    alone = run("-m", "outsize", "train", run_file, "--out", tmp_path / "one",
                "--set", "train.batch_size=48", *NO_CLIPPING)  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    found = train(3, run_file, tmp_path / "many", *SHARDED, *NO_CLIPPING)
    for one, other in zip(curve(tmp_path / "one"), found, strict=True):
        assert one[:2] == other[:2]
        assert other[2] == pytest.approx(one[2], rel=1e-4)


@pytest.mark.slow
def test_a_cache_without_staleness_changes_no_bit_of_a_run(run_file, tmp_path):
    plain = train(2, run_file, tmp_path / "plain", *SHARDED)
    assert train(2, run_file, tmp_path / "cached", *bounds(0, 0)) == plain
    expected, found = final_weights(tmp_path / "plain"), final_weights(tmp_path / "cached")
    assert expected.keys() <= found.keys()  # besides, who has copies of what
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_runs_log_and_report_what_rows_cost(run_file, tmp_path):
    train(2, run_file, tmp_path / "run", *bounds(20, 3, "int8"))
    lines = RunFolder(tmp_path / "run").metrics()
    for line in (line for line in lines if line["split"] == "train"):
        sent = [line[f"sent_{kind}"] for kind in ("ids", "clocks", "rows", "gradients")]
        assert all(size > 0 for size in sent)
        assert 0 <= line["hit_rate"] < 1
        assert line["largest_lag"] is None or line["largest_lag"] <= 20
        assert 0 < line["pushes"] <= line["reads"]
    assert lines[-1]["split"] == "rows"
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Rows between ranks" in report
    assert "<th>row cache</th>" in report  # a bar of the memory plot
    assert RunFolder(tmp_path / "run").summary()["memory_by_part"]["row cache"]


@pytest.mark.slow  # without a cache it is replaced in test_data_parallel
@pytest.mark.parametrize("more", [[], OVERLAPPED], ids=["", "overlapped"])
def test_a_killed_rank_with_a_cache_is_replaced_and_the_run_ends_as_if_it_had_lived(tmp_path, more):
    path = tmp_path / "run.toml"
    path.write_text(RUN.format(num_train=5_000))
    shorter = ["--set", "train.epochs=1", "--set", "train.validate_every=40"]
    words = ["-m", "outsize", "train", path, "--set", "train.batch_size=16", *shorter]
    words += [*bounds(20, 3, "int8"), *more]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    train_and_kill_a_rank(words, whole, out)
    aucs = [
        [line["auc"] for line in RunFolder(folder).metrics() if "auc" in line]
        for folder in (out, whole)
    ]
    assert aucs[0] == aucs[1]


def test_a_run_with_a_cache_goes_on_with_another_number_of_ranks(run_file, tmp_path):
    out = tmp_path / "run"
    train(3, run_file, out, *bounds(20, 3), "--set", "train.steps=12")
    resume = ["--out", out, "--resume", *bounds(20, 3), "--set", "train.steps=12"]
    alone = run("-m", "outsize", "train", run_file, *resume, "--set", "train.batch_size=48")
    assert alone.returncode == 0, alone.stderr
    assert curve(out)[-1][0] == 12


def test_a_run_with_overlap_resumes_bit_for_bit(run_file, tmp_path):
    settings = [*bounds(20, 3, "int8"), *OVERLAPPED, "--set", "checkpoint.keep=100"]
    expected = train(2, run_file, tmp_path / "whole", *settings)
    waited = [line["wait_s"] for line in RunFolder(tmp_path / "whole").metrics()
              if line["split"] == "train"]  # fmt: skip
    assert all(seconds >= 0 for seconds in waited)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    _, *later = sorted(list_checkpoints(tmp_path / "resumed" / "checkpoint"))
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    assert len(later) > 2
    assert train(2, run_file, tmp_path / "resumed", *settings, "--resume") == expected
    weights, found = final_weights(tmp_path / "whole"), final_weights(tmp_path / "resumed")
    assert weights.keys() == found.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_overlap_is_refused_where_there_is_no_exchange_to_overlap(run_file, tmp_path):
    for store, why in (("local", "keeps all rows on every rank"), ("served", "lets ranks wait")):
        with pytest.raises(ConfigError, match=why):
            load_config(run_file, ["embeddings.overlap=true", f"embeddings.store={store}"])
    retrieval = tmp_path / "retrieval.toml"
    retrieval.write_text('[data]\nkind = "synthetic-interactions"\n[model]\nkind = "two-tower"\n')
    with pytest.raises(ConfigError, match=r"embeddings\.overlap is for click models"):
        load_config(retrieval, ["embeddings.overlap=true", "embeddings.store=sharded"])


def test_clipping_leaves_ranks_equal():
    script = Path(__file__).parent.parent / "ranks" / "check_clipping.py"
    code, output, errors = run_ranks(2, script)
    assert code == 0, errors
    assert output.count("has passed") == 2


def test_caches_need_rows_that_live_elsewhere(run_file):
    done = run("-m", "outsize", "train", run_file, "--set", "embeddings.cache.share=0.1")
    assert done.returncode == 2
    assert "set store = 'sharded'" in done.stderr
