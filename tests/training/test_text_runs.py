"""Texts in the loop: what is learned, and what a checkpoint brings back."""

import pytest
import torch
from processes import run_ranks
from retrieval_runs import make_loop, train_until
from test_loop import Recorder, assert_same_tree, curve, final_weights
from text_runs import BASE, make_text_config, write_pairs

import outsize
import outsize.training.report
from outsize.errors import ConfigError
from outsize.negatives import NEGATIVES
from outsize.plan import plan_run
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, encode, override, to_toml
from outsize.training.tasks import RetrievalTask


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("texts") / "pairs.jsonl")


@pytest.fixture
def no_reports(monkeypatch):
    """Figures take longer than these runs."""
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)


@pytest.mark.parametrize(
    "settings",
    [
        ("train.epochs=10",),
        ("train.epochs=10", "model.shared=false"),
        ("train.epochs=10", "model.dim=12"),  # a linear layer leads to another width
        ("train.epochs=14", "model.layers=1", "model.heads=2", "optimizer.learning_rate=0.01"),
    ],
    ids=["bag", "two tables", "projected", "transformer"],
)
def test_words_of_queries_are_matched_with_those_of_items(pairs, settings):
    config = make_text_config(pairs, "train.validate_every=1000", *settings)
    task = RetrievalTask(config)
    before = task.evaluate("test")["mrr@10"]
    loop = make_loop(config)
    loop.fit()
    assert loop.task.evaluate("test")["mrr@10"] > max(0.5, 3 * before)


@pytest.mark.parametrize("kind", NEGATIVES)
def test_texts_train_against_every_kind_of_negatives(pairs, kind):
    callbacks = Recorder()
    config = make_text_config(
        pairs, f"negatives.kind={kind}", "train.epochs=3", "train.validate_every=1000"
    )
    make_loop(config, callbacks=callbacks).fit()
    losses = [line["loss"] for line in callbacks.of("train")]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "settings",
    [
        ("negatives.kind=cache", "negatives.num_negatives=4", "negatives.refresh=0.1"),
        ("model.layers=1", "embeddings.kind=tables", "embeddings.method=hash",
         "embeddings.max_params=400"),
    ],
    ids=["cache", "compressed transformer"],
)  # fmt: skip
def test_a_run_on_texts_stopped_and_resumed_is_bit_identical(pairs, tmp_path, settings, no_reports):
    tree = override(BASE, settings)
    if settings[0].startswith("model"):
        del tree["embeddings"]["optimizer"]
    tree["data"] |= {"path": [str(pairs)], "item_id": "name"}
    config = decode(RunConfig, tree, "test")
    outsize.train(config, tmp_path / "whole", quiet=True)
    train_until(9, config, tmp_path / "stopped")
    outsize.train(config, tmp_path / "stopped", resume=True, quiet=True)
    assert curve(tmp_path / "stopped") == curve(tmp_path / "whole")
    assert_same_tree(final_weights(tmp_path / "stopped"), final_weights(tmp_path / "whole"))


def test_two_ranks_that_share_rows_train_on_texts(pairs, tmp_path):
    config = make_text_config(
        pairs, "embeddings.store=sharded", "negatives.kind=cache", "negatives.num_negatives=4",
        "train.epochs=1", "train.batch_size=20",
    )  # fmt: skip
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(config)))
    code, _, errors = run_ranks(
        2, "-m", "outsize", "train", path, "--out", tmp_path / "run", "--json"
    )
    assert code == 0, errors
    (measured,) = [line for line in curve(tmp_path / "run") if line["split"] == "test"][-1:]
    assert 0 < measured["mrr@10"] <= 1


def test_a_run_on_texts_can_be_planned(pairs):
    config = make_text_config(pairs)
    found = plan_run(config).summary()
    (table,) = found["tables"]
    assert table["table"] == "tokens"
    assert table["rows"] == RetrievalTask(config).model.tokenizer.num_tokens
    assert found["examples"]["train"] == RetrievalTask(config).data.num_pairs("train")


def test_queries_that_training_has_not_seen_are_evaluated(pairs):
    task = RetrievalTask(make_text_config(pairs))
    asked = task.data.relevant("test").counts() > 0
    assert int(asked.sum()) == task.data.num_pairs("test")
    trained = task.data.relevant("train").counts() > 0
    assert not bool((asked & trained).any())


def test_the_weights_of_tokens_are_their_rarity(pairs):
    model = RetrievalTask(make_text_config(pairs)).model
    weights = model.token_weights
    frequent = model.tokenizer.tokens_of("tell1")
    assert len(frequent) == 1
    rare = model.tokenizer.tokens_of("filler1")
    assert len(rare) > 1  # pieces: the word occurs once
    torch.testing.assert_close(weights, torch.from_numpy(model.tokenizer.weights))
    assert weights[frequent[0]] < 3 * weights[rare].max()


@pytest.mark.parametrize(
    ("model", "data", "fact"),
    [
        ("two-tower", "text-pairs", "reads features, but data.kind = 'text-pairs' holds texts"),
        ("text", "synthetic-interactions", "reads texts, but"),
    ],
)
def test_texts_and_models_of_features_are_not_mixed(model, data, fact, pairs):
    tree = {"model": {"kind": model}, "data": {"kind": data}}
    if data == "text-pairs":
        tree["data"]["path"] = [str(pairs)]
    with pytest.raises(ConfigError, match=fact):
        decode(RunConfig, tree, "test")


def test_long_texts_are_cut_and_counted(pairs, capsys):
    RetrievalTask(make_text_config(pairs, "model.max_tokens=2"))
    assert "300 of 300 items have more than 2 tokens: cut" in capsys.readouterr().err
