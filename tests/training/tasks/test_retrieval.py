"""Retrieval in the loop: what is trained, and what a checkpoint brings back."""

import pytest
import torch
from retrieval_runs import PLAIN, make_config, make_loop, train_until, without_strays
from test_loop import Recorder, assert_same_tree, curve, final_weights

import outsize
import outsize.training.report
from outsize.checkpoint import latest_checkpoint
from outsize.errors import ConfigError
from outsize.negatives import NEGATIVES
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override
from outsize.training.tasks import RetrievalTask


@pytest.fixture
def no_reports(monkeypatch):
    """Figures take longer than these runs."""
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)


@pytest.mark.parametrize(
    "settings",
    [
        ("negatives.kind=in-batch", "negatives.num_negatives=4"),
        ("negatives.warmup_steps=4",),
        ("negatives.feed=positives", "negatives.num_items=20", "negatives.learn_beta=true",
         "negatives.warmup_steps=3"),
        ("negatives.feed=stream", "negatives.num_items=20", "negatives.num_new=3",
         "negatives.warmup_steps=7"),
    ],
    ids=["in-batch", "corpus", "positives", "stream"],
)  # fmt: skip
def test_a_run_stopped_at_any_step_and_resumed_is_bit_identical(tmp_path, settings, no_reports):
    config = without_strays(*settings)
    outsize.train(config, tmp_path / "whole", quiet=True)
    for stop in (1, 13):
        out = tmp_path / f"stopped-{stop}"
        train_until(stop, config, out)
        outsize.train(config, out, resume=True, quiet=True)
        assert curve(out) == curve(tmp_path / "whole")
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))
        newest = [latest_checkpoint(f / "checkpoint") for f in (out, tmp_path / "whole")]
        names = {f.name for f in newest[0].glob("*-of-00001.safetensors")}
        assert "negatives-00000-of-00001.safetensors" in names
        assert ("cache-00000-of-00001.safetensors" in names) == isinstance(
            config.negatives, NEGATIVES["cache"]
        )
        for name in names:
            assert (newest[0] / name).read_bytes() == (newest[1] / name).read_bytes()


@pytest.mark.parametrize("kind", NEGATIVES)
@pytest.mark.parametrize("rows", [("embeddings.kind=store",), ("embeddings.kind=tables", *PLAIN)])
def test_every_kind_of_negatives_trains(kind, rows):
    callbacks = Recorder()
    config = without_strays(
        f"negatives.kind={kind}", "train.epochs=3", "train.validate_every=1000", *rows
    )
    loop = make_loop(config, callbacks=callbacks)
    loop.fit()
    losses = [line["loss"] for line in callbacks.of("train")]
    assert losses[-1] < losses[0]
    for line in callbacks.of("train"):
        assert 0 < line["p_positive"] < 1
        assert line["beta"] == pytest.approx(20)
    for line in callbacks.of("validation"):
        assert {"loss", "recall@20", "ndcg@10", "mrr@10", "num_queries"} < line.keys()


def test_numbers_of_queries_and_items_are_learned_from(tmp_path):
    """Who takes what is decided by two numbers of each, which users do not share."""
    generator = torch.Generator().manual_seed(0)
    tastes, looks = (torch.randn(n, 2, generator=generator) for n in (300, 40))
    taken = (3 * tastes @ looks.T).softmax(dim=1).multinomial(6, generator=generator)
    lines = ["user,film,part,x,y,u,v"]
    for user, films in enumerate(taken.tolist()):
        for place, film in enumerate(films):
            numbers = [f"{n:.4f}" for n in (*tastes[user].tolist(), *looks[film].tolist())]
            lines.append(",".join([f"q{user}", f"f{film}", str(int(place == 5)), *numbers]))
    (tmp_path / "taken.csv").write_text("\n".join(lines))

    def recall(*settings):
        tree = {
            "data": {"kind": "interactions", "path": [str(tmp_path / "taken.csv")], "query": "user",
                     "item": "film", "query_features": ["x", "y"], "item_features": ["u", "v"],
                     "numeric": ["x", "y", "u", "v"],
                     "split": {"kind": "column", "column": "part", "train": ["0"], "test": ["1"]}},
            "model": {"kind": "two-tower", "dim": 8, "normalize": False,
                      "query_features": ["x", "y"]},
            "negatives": {"kind": "exact", "beta": 1.0},
            "embeddings": {"dim": 4},
            "retrieval": {"recall_at": [5]},
            "train": {"batch_size": 64, "epochs": 6, "device": "cpu"},
        }  # fmt: skip
        config = decode(RunConfig, override(tree, settings), "test")
        return outsize.train(config, quiet=True).test["recall@5"]

    for features in ('["film"]', '["film", "u", "v"]'):
        assert recall(f"model.item_features={features}") > 0.55
    assert recall('model.item_features=["film"]', "data.numeric=[]") < 0.4  # values as ids
    with pytest.raises(ConfigError, match="name one that is an id"):
        recall('model.item_features=["u", "v"]')


def test_a_model_of_rows_alone_trains():
    config = make_config(*PLAIN, "negatives.beta=5.0")
    result = outsize.train(config, quiet=True)
    assert list(result.model.parameters()) == []
    assert result.steps == 24


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


def test_items_are_encoded_in_training_mode_with_gradients_and_in_evaluation_mode_without():
    task = RetrievalTask(make_config("negatives.refresh=0.5"))
    task.begin()
    modes = []
    tower = task.model.item_tower
    tower.register_forward_pre_hook(
        lambda part, _: modes.append((torch.is_grad_enabled(), part.training))
    )
    task.loss(next(task.train_batches(0, 0))).backward()
    task.commit()
    task.negatives.begin()
    assert modes == [(True, True), (False, False), (False, False)]
    assert all(part.training for part in task.model.modules())


@pytest.mark.parametrize("max_known", [None, 70, 0])
def test_all_training_items_of_a_query_are_masked_unless_fewer_are_asked_for(max_known):
    settings = [] if max_known is None else [f"retrieval.max_known={max_known}"]
    config = make_config(
        "data.num_items=300", "data.items_per_query=120", "data.num_queries=20", *settings
    )
    task = RetrievalTask(config)
    batch = next(task.train_batches(0, 0))
    given = []
    forward = task.negatives.forward
    task.negatives.forward = lambda *args: (given.append(args[3]), forward(*args))[1]
    task.begin()
    task.loss(batch)
    if max_known == 0:
        assert given == [None]
        return
    train = torch.cat([b.query_rows for b in task.train_batches(0, 0)])
    counts = torch.bincount(train, minlength=20)[batch.query_rows]
    assert counts.max() > 70
    expected = counts if max_known is None else counts.clamp_max(max_known)
    assert torch.equal(given[0].sizes(), expected)


def test_training_lines_tell_how_stale_the_cache_is():
    callbacks = Recorder()
    make_loop(make_config("negatives.warmup_steps=3"), callbacks=callbacks).fit()
    first, second, *_ = callbacks.of("train")
    assert {"staleness", "drawn_age", "age", "held", "refreshed", "p_positive"} <= second.keys()
    assert first["staleness"] > 0  # the mean over the two steps that drew
    assert second["held"] == 50


def test_the_cache_counts_as_memory(no_reports):
    further = {
        kind: outsize.train(without_strays(f"negatives.kind={kind}"), quiet=True).memory
        for kind in ("cache", "exact")
    }
    cache = RetrievalTask(make_config()).negatives.cache
    assert further["exact"].bytes_of("cache") == 0
    assert further["cache"].bytes_of("cache") == cache.memory_use().total_bytes > 0


def test_items_in_chunks_train_the_same():
    curves = []
    for chunk_size in ("", "negatives.chunk_size=5"):
        callbacks = Recorder()
        settings = [chunk_size] if chunk_size else []
        make_loop(make_config("train.steps=6", *settings), callbacks=callbacks).fit()
        curves.append([line["loss"] for line in callbacks.lines if "loss" in line])
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


def test_the_judge_decides_which_validation_is_best():
    callbacks = Recorder()
    loop = make_loop(
        make_config("retrieval.judge=recall@20", "train.epochs=4"), callbacks=callbacks
    )
    loop.fit()
    best = max(line["recall@20"] for line in callbacks.of("validation"))
    assert loop.state.best["recall@20"] == best
    assert loop.task.badness({"recall@20": 0.3}) == -0.3


def test_a_run_stops_early_by_its_judge():
    callbacks = Recorder()
    config = make_config(
        "train.early_stop=true", "train.epochs=40", "embeddings.optimizer.learning_rate=5.0",
        "train.validate_every=1000",
    )  # fmt: skip
    loop = make_loop(config, callbacks=callbacks)
    loop.fit()
    assert loop.state.stopped == "early"
    assert "got no better than ndcg@10 0." in callbacks.said[0]


def test_compressed_items_are_reclustered_with_their_cache():
    callbacks = Recorder()
    config = make_config(
        "embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=60",
        "embeddings.recluster.count=1",
    )  # fmt: skip
    make_loop(config, callbacks=callbacks).fit()
    assert {line["table"] for line in callbacks.of("recluster")} >= {"item", "query"}


def test_the_report_shows_rankings_and_negatives(tmp_path):
    outsize.train(make_config("train.steps=15"), tmp_path / "run", quiet=True)
    page = (tmp_path / "run" / "report.html").read_text()
    for word in ("<h2>NDCG@10</h2>", "<h2>Recall@20</h2>", "test MRR@10", "<h2>staleness</h2>",
                 "<h2>Throughout the run</h2>", "kind = &quot;cache&quot;"):  # fmt: skip
        assert word in page
    assert "AUC" not in page


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["exact", "cache"])
def test_a_run_on_cuda_comes_close_to_one_on_the_cpu(kind):
    cpu, gpu = (
        outsize.train(
            without_strays(f"negatives.kind={kind}", f"train.device={device}"), quiet=True
        )
        for device in ("cpu", "cuda")
    )
    assert gpu.test["loss"] == pytest.approx(cpu.test["loss"], rel=0.05)
