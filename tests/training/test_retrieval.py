"""Retrieval in the loop: what is trained, what is ranked, and what a checkpoint brings back."""

import json
import subprocess
import sys

import pytest
import torch
from launching import final_weights as dense_weights
from launching import run
from test_loop import Recorder, assert_same_tree, curve, final_weights

import outsize
from outsize.checkpoint import latest_checkpoint
from outsize.compare.grid import Grid
from outsize.errors import CheckpointError, ConfigError, DataError
from outsize.negatives import NEGATIVES
from outsize.training import export_run
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.loop import Loop, Watcher
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, encode, override, to_toml
from outsize.training.tasks import TASKS, RetrievalTask

BASE = {
    "data": {"kind": "synthetic-interactions", "num_queries": 60, "num_items": 50,
             "items_per_query": 8, "num_groups": 6, "latent_dim": 4},
    "model": {"kind": "two-tower", "dim": 8, "hidden": [8]},
    "negatives": {"kind": "cache", "num_negatives": 4, "refresh": 0.1},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 32, "epochs": 2, "validate_every": 7, "log_every": 5,
              "early_stop": False, "device": "cpu"},
    "checkpoint": {"every": 6},
}  # fmt: skip
# Matrix factorisation, and nothing but rows to train.
PLAIN = ("model.hidden=[]", "model.dim=4", 'model.query_features=["query"]',
         'model.item_features=["item"]')  # fmt: skip


def make_config(*settings):
    return decode(RunConfig, override(BASE, settings), "test")


def make_loop(config, checkpoints=None, watcher=None):
    task = TASKS[config.task](config)
    optimizer = build_dense_optimizer(config.optimizer, task.trained)
    return Loop(task, config, optimizer, watcher, checkpoints)


class Writes(Watcher):
    def __init__(self, folder):
        self._folder = folder

    def log(self, line):
        self._folder.append_metrics(line)


def train_until(step, config, out):
    folder = RunFolder(out)
    folder.begin(config)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, Writes(folder))
        loop._stop_asked = lambda: loop.state.step == step
        with pytest.raises(KeyboardInterrupt):
            loop.fit()


@pytest.mark.parametrize(
    "settings",
    [
        ("negatives.kind=in-batch", "negatives.num_negatives=4"),
        ("negatives.warmup_steps=4",),
        ("negatives.feed=positives", "negatives.num_items=20", "negatives.learn_beta=true"),
        ("negatives.feed=stream", "negatives.num_items=20", "negatives.num_new=3"),
    ],
    ids=["in-batch", "corpus", "positives", "stream"],
)
def test_a_run_stopped_at_any_step_and_resumed_is_bit_identical(tmp_path, settings):
    config = without_strays(*settings)
    outsize.train(config, tmp_path / "whole", quiet=True)
    for stop in (1, 13):
        out = tmp_path / f"stopped-{stop}"
        train_until(stop, config, out)
        outsize.train(config, out, resume=True, quiet=True)
        assert curve(out) == curve(tmp_path / "whole")
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))
        newest = [latest_checkpoint(f / "checkpoint") for f in (out, tmp_path / "whole")]
        files = [f / "negatives-00000-of-00001.safetensors" for f in newest]
        assert files[0].read_bytes() == files[1].read_bytes()


def without_strays(*settings):
    """A configuration with only those keys of [negatives] that its kind has."""
    tree = override(BASE, settings)
    kind = NEGATIVES[tree["negatives"].pop("kind")]
    known = {name: v for name, v in tree["negatives"].items() if name in kind.__dataclass_fields__}
    names = {k: name for name, k in NEGATIVES.items()}
    tree["negatives"] = {"kind": names[kind], **known}
    return decode(RunConfig, tree, "test")


@pytest.mark.parametrize("kind", NEGATIVES)
@pytest.mark.parametrize("rows", [("embeddings.kind=store",), ("embeddings.kind=tables", *PLAIN)])
def test_every_kind_of_negatives_trains(kind, rows):
    watcher = Recorder()
    config = without_strays(
        f"negatives.kind={kind}", "train.epochs=3", "train.validate_every=1000", *rows
    )
    loop = make_loop(config, watcher=watcher)
    loop.fit()
    losses = [line["loss"] for line in watcher.of("train")]
    assert losses[-1] < losses[0]
    for line in watcher.of("train"):
        assert 0 < line["p_positive"] < 1
        assert line["beta"] == pytest.approx(20)
    for line in watcher.of("validation"):
        assert {"loss", "recall@20", "ndcg@10", "mrr@10", "num_queries"} < line.keys()


def test_a_model_of_rows_alone_trains():
    config = make_config(*PLAIN, "negatives.beta=5.0")
    result = outsize.train(config, quiet=True)
    assert list(result.model.parameters()) == []
    assert result.steps == 24


def test_a_trained_model_ranks_far_better_than_popularity():
    config = without_strays(
        *PLAIN, "negatives.kind=exact", "negatives.beta=5.0", "train.epochs=12", "model.dim=8",
        "embeddings.dim=8", "data.num_queries=300", "embeddings.optimizer.learning_rate=0.3",
        "train.validate_every=1000", "data.temperature=0.2", "data.skew=0.2",
    )  # fmt: skip
    loop = make_loop(config)
    loop.fit()
    data = loop.task.data
    metrics = config.retrieval.metrics()
    popular = torch.argsort(data.item_counts, descending=True)
    rows = torch.arange(300)
    unknown = ~torch.isin(
        rows[:, None] * 50 + popular,
        torch.stack(data.known("test").pairs()).T @ torch.tensor([50, 1]),
    )
    ranked = torch.stack([popular[keep][:20] for keep in unknown])
    metrics.add(ranked, *data.relevant("test").flat(rows))
    assert loop.state.test["ndcg@10"] > 1.5 * metrics.result()["ndcg@10"]


def by_hand(task, split):
    """Metrics of a split, a query at a time, from all scores."""
    model, data = task.model.eval(), task.data
    with torch.no_grad():
        queries = model.encode_queries(data.queries.features)
        scores = 20 * queries @ model.encode_items(data.items.features).T
    losses, recalls = [], []
    known, relevant = data.known(split), data.relevant(split)
    for query in range(data.queries.num_rows):
        wanted, _ = relevant.flat(torch.tensor([query]))
        seen, _ = known.flat(torch.tensor([query]))
        if not len(wanted):
            continue
        allowed = scores[query].clone()
        allowed[seen] = -torch.inf
        best = allowed.argsort(descending=True)[:20]
        recalls.append(float(torch.isin(wanted, best).float().mean()))
        others = allowed.clone()
        others[wanted] = -torch.inf
        for item in wanted:
            both = torch.stack((allowed[item], others.logsumexp(dim=0)))
            losses.append(float(both.logsumexp(dim=0) - allowed[item]))
    return sum(losses) / len(losses), sum(recalls) / len(recalls), len(recalls)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_ranks_all_items_but_those_known(split):
    task = RetrievalTask(make_config("train.eval_batch_size=7"))
    found = task.evaluate(split)
    assert task.model.training
    loss, recall, count = by_hand(task, split)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["recall@20"] == pytest.approx(recall)
    assert found["num_queries"] == count


def test_evaluation_changes_nothing():
    config = make_config()
    task = RetrievalTask(config)
    before = {name: value.clone() for name, value in task.negatives.state_dict().items()}
    rows = task.model.embeddings.store.read(torch.arange(50), "item").clone()
    first = task.evaluate("validation")
    assert task.evaluate("validation") == first
    assert_same_tree(dict(task.negatives.state_dict()), before)
    assert torch.equal(task.model.embeddings.store.read(torch.arange(50), "item"), rows)


def test_the_cache_changes_once_a_step_and_only_after_the_weights():
    task = RetrievalTask(make_config())
    batch = next(task.train_batches(0, 0))
    before = {name: v.clone() for name, v in task.negatives.cache.named_buffers()}
    task.loss(batch).backward()
    assert_same_tree(dict(task.negatives.cache.named_buffers()), before)
    task.commit()
    assert task.negatives.cache.clock == 1
    task.commit()  # nothing new to keep
    assert task.negatives.cache.clock == 1


def test_training_lines_tell_how_stale_the_cache_is():
    watcher = Recorder()
    make_loop(make_config("negatives.warmup_steps=3"), watcher=watcher).fit()
    first, second, *_ = watcher.of("train")
    assert {"staleness", "drawn_age", "age", "held", "refreshed", "p_positive"} <= second.keys()
    assert first["staleness"] > 0  # the mean over the two steps that drew
    assert second["held"] == 50


def test_items_in_chunks_train_the_same():
    curves = []
    for chunk_size in ("", "negatives.chunk_size=5"):
        watcher = Recorder()
        settings = [chunk_size] if chunk_size else []
        make_loop(make_config("train.steps=6", *settings), watcher=watcher).fit()
        curves.append([line["loss"] for line in watcher.lines if "loss" in line])
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


def test_the_judge_decides_which_validation_is_best():
    watcher = Recorder()
    loop = make_loop(make_config("retrieval.judge=recall@20", "train.epochs=4"), watcher=watcher)
    loop.fit()
    best = max(line["recall@20"] for line in watcher.of("validation"))
    assert loop.state.best["recall@20"] == best
    assert loop.task.badness({"recall@20": 0.3}) == -0.3


def test_a_run_stops_early_by_its_judge():
    watcher = Recorder()
    config = make_config(
        "train.early_stop=true", "train.epochs=40", "embeddings.optimizer.learning_rate=5.0",
        "train.validate_every=1000",
    )  # fmt: skip
    loop = make_loop(config, watcher=watcher)
    loop.fit()
    assert loop.state.stopped == "early"
    assert "got no better than ndcg@10 0." in watcher.said[0]


def test_compressed_items_are_reclustered_with_their_cache():
    watcher = Recorder()
    config = make_config(
        "embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=60",
        "embeddings.recluster.count=1",
    )  # fmt: skip
    make_loop(config, watcher=watcher).fit()
    assert {line["table"] for line in watcher.of("recluster")} >= {"item", "query"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.kind=dlrm"], "unknown key"),
        (["data.kind=synthetic"], "unknown key"),
    ],
)
def test_keys_of_another_kind_are_unknown(settings, words):
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
    with pytest.raises(ConfigError, match="only click models can be exported"):
        export_run(tmp_path / "run", tmp_path / "model")
    with pytest.raises(ConfigError, match="this is a retrieval run"):
        Grid(make_config(), ("cce",), ())
    with pytest.raises(ConfigError, match="'bfloat16' is for CUDA"):
        RetrievalTask(make_config("train.precision=bfloat16"))


def test_a_damaged_cache_file_is_not_believed(tmp_path):
    config = make_config("train.steps=6")
    outsize.train(config, tmp_path / "run", quiet=True)
    newest = latest_checkpoint(tmp_path / "run" / "checkpoint")
    path = newest / "negatives-00000-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"negatives-00000-of-00001.safetensors: it has"):
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


@pytest.mark.parametrize(
    "settings",
    [
        # 360 pairs in batches of 46: 7 batches and 38, 19 for each rank.
        ["negatives.learn_beta=true", "train.batch_size=23"],
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
    alone = subprocess.run(
        [sys.executable, "-m", "outsize", "train", path, "--out", one,
         "--set", f"train.batch_size={2 * config.train.batch_size}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    code, output, errors = run(2, "-m", "outsize", "train", path, "--out", two, "--json")
    assert code == 0, errors
    assert json.loads(output)["stopped"] == "finished"
    for expected, found in zip(curve(one), curve(two), strict=True):
        assert expected.keys() == found.keys()
        for name in expected.keys() - {"split"}:
            assert found[name] == pytest.approx(expected[name], rel=2e-3, abs=1e-6), name
    weights = [dense_weights(folder) for folder in (one, two)]
    for (name, expected), (other, found) in zip(*(sorted(w.items()) for w in weights), strict=True):
        assert name == other
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_ranks_with_shards_keep_a_cache_each_and_resume(tmp_path):
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
    code, _, errors = run(2, *words)
    assert code == 0, errors
    whole = curve(out)
    checkpoints = sorted((out / "checkpoint").iterdir())
    assert len(list(checkpoints[0].glob("negatives-*-of-00002.safetensors"))) == 2
    for checkpoint in checkpoints[2:]:
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    code, _, errors = run(2, *words, "--resume")
    assert code == 0, errors
    drop = {"exchange_s"}
    kept = [[{k: v for k, v in line.items() if k not in drop} for line in lines]
            for lines in (whole, curve(out))]  # fmt: skip
    assert kept[0] == kept[1]
