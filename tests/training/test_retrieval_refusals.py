"""What is not a retrieval run, said in words."""

import pytest
from retrieval_runs import BASE, make_config

import outsize
from outsize.checkpoint import latest_checkpoint
from outsize.compare.grid import Grid
from outsize.errors import CheckpointError, ConfigError, DataError
from outsize.negatives import NEGATIVES
from outsize.training import export_run
from outsize.training.config import RunConfig
from outsize.training.evaluate import evaluate
from outsize.training.strict_toml import decode, encode
from outsize.training.tasks import RetrievalTask


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.kind=dlrm"], "is a key of model.kind = .*'two-tower'.*: remove it"),
        (
            ["data.kind=synthetic"],
            "'data.num_queries' is a key of data.kind = 'synthetic-interactions'",
        ),
    ],
)
def test_keys_of_another_kind_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        make_config(*settings)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"model": {"kind": "two-tower"}},
         "model.kind = 'two-tower' is for retrieval data, but data.kind = 'synthetic' is click "
         "data: choose data.kind from interactions, synthetic-interactions, or another model"),
        ({"data": {"kind": "synthetic-interactions"}}, "'dlrm' is for click data"),
        ({"negatives": {}}, r"\[negatives\] belongs to a retrieval model"),
        ({"retrieval": {"max_known": 3}}, r"\[retrieval\] belongs to a retrieval model"),
        ({**BASE, "retrieval": {"judge": "auc"}}, "judge must be one of loss, recall@20, ndcg@10"),
        ({**BASE, "embeddings": {"store": "served"}}, "'served' is for click models"),
        ({**BASE, "negatives": {"kind": "cach"}}, "Did you mean 'cache'"),
        ({**BASE, "retrieval": {"max_know": 3}}, "unknown key 'retrieval.max_know'"),
        ({**BASE, "retrieval": 3}, "'retrieval' must be a section"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused_in_words(tree, words):
    with pytest.raises(ConfigError, match=words):
        decode(RunConfig, tree, "test")


def test_a_configuration_is_written_and_read_back():
    config = make_config()
    assert decode(RunConfig, encode(config), "test") == config
    plain = RunConfig()
    assert plain.negatives is None
    assert "negatives" not in encode(plain)
    short = {"data": {"kind": "synthetic-interactions"}, "model": {"kind": "two-tower"}}
    assert decode(RunConfig, short, "test").negatives == NEGATIVES["cache"]()


def test_what_cannot_be_done_with_a_retrieval_run_is_refused(tmp_path):
    outsize.train(make_config("train.steps=2"), tmp_path / "run", quiet=True)
    export_run(tmp_path / "run", tmp_path / "model")
    with pytest.raises(ConfigError, match="how raw values become features"):  # there are none
        outsize.load_exported(tmp_path / "model").search({"query": ["3"]})
    with pytest.raises(
        ConfigError, match="data that has no raw values, so no file can be evaluated"
    ):
        evaluate(tmp_path / "run", tmp_path / "pairs.csv")
    with pytest.raises(ConfigError, match="this is a retrieval run"):
        Grid(make_config(), ("cce",), ())
    with pytest.raises(ConfigError, match="'bfloat16' is for CUDA"):
        RetrievalTask(make_config("train.precision=bfloat16"))


def test_a_damaged_cache_file_is_not_believed(tmp_path):
    config = make_config("train.steps=6")
    outsize.train(config, tmp_path / "run", quiet=True)
    newest = latest_checkpoint(tmp_path / "run" / "checkpoint")
    path = newest / "cache-00000-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"cache-00000-of-00001.safetensors: it has"):
        outsize.train(config, tmp_path / "run", resume=True, quiet=True)


def test_data_in_which_nothing_is_held_out_is_refused(tmp_path):
    rows = "".join(f"{user},{item},{part}\n" for user in "ab" for item in "xy" for part in (0, 1))
    (tmp_path / "pairs.csv").write_text("user_id,item_id,part\n" + rows)
    tree = {
        "data": {"kind": "interactions", "path": [str(tmp_path / "pairs.csv")], "validation": 0.5,
                 "split": {"kind": "column", "column": "part", "train": ["0"], "test": ["1"]}},
        "model": {"kind": "two-tower"},
    }  # fmt: skip
    with pytest.raises(DataError, match="no query can be evaluated: every test pair is known"):
        RetrievalTask(decode(RunConfig, tree, "test"))
