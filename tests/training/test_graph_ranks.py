"""Graph runs on several ranks."""

import json
from pathlib import Path

import pytest
import torch
from graph_runs import LINKS, NODES, make_config
from launching import final_weights
from processes import run_ranks
from test_loop import curve

import outsize
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml


def train_on_ranks(config, tmp_path, name, *words):
    path, out = tmp_path / f"{name}.toml", tmp_path / name
    path.write_text(to_toml(encode(config)))
    code, output, errors = run_ranks(
        2, "-m", "outsize", "train", path, "--out", out, "--json", *words
    )
    assert code == 0, errors
    return out, json.loads(output)


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        # 289 nodes in batches of 48: the last is a single node, and leaves a rank without any.
        (NODES, ["data.num_nodes=408", "train.batch_size=24", "model.dropout=0.2",
                 "train.epochs=1"]),
        (LINKS, ["train.batch_size=23", "train.epochs=1"]),
    ],
)  # fmt: skip
def test_two_ranks_equal_one_process_with_twice_the_batch(tmp_path, base, settings, monkeypatch):
    monkeypatch.setattr("outsize.training.report.write_report", lambda *given: None)
    config = make_config(base, "embeddings.store=sharded", *settings)
    two, _ = train_on_ranks(config, tmp_path, "two")
    twice = f"train.batch_size={2 * config.train.batch_size}"
    outsize.train(make_config(base, *settings, twice), tmp_path / "one", quiet=True)
    for expected, found in zip(curve(tmp_path / "one"), curve(two), strict=False):
        assert expected["split"] == found["split"]
        # Of sharded rows, the norm counts gradients of one row from two ranks as orthogonal.
        for name in expected.keys() - {"split", "gradient_norm"}:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-5), name
    weights = [final_weights(folder) for folder in (tmp_path / "one", two)]
    dense = [name for name in weights[0] if name in weights[1]]
    assert dense
    for name in dense:
        if weights[0][name].shape == weights[1][name].shape:
            torch.testing.assert_close(weights[1][name], weights[0][name], rtol=1e-3, atol=1e-4)


def test_ranks_with_cached_rows_save_bytes_and_report_their_hits(tmp_path):
    cached = ("embeddings.store=sharded", "embeddings.cache.share=0.5", "train.epochs=3")
    exact, _ = train_on_ranks(make_config(NODES, "embeddings.store=sharded", "train.epochs=3"),
                              tmp_path, "exact")  # fmt: skip
    stale, summary = train_on_ranks(make_config(NODES, *cached), tmp_path, "stale")
    sent = [sum(line.get("sent_rows", 0) for line in RunFolder(folder).metrics())
            for folder in (exact, stale)]  # fmt: skip
    assert 0 < sent[1] < sent[0]
    assert 0 < summary["test"]["accuracy"] < 1
    hits = [line["hit_rate"] for line in RunFolder(stale).metrics() if "hit_rate" in line]
    assert max(hits) > 0
    assert "hit rate" in Path(stale, "report.html").read_text()
