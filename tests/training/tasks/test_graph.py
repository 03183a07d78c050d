"""Classes of nodes and links in the one loop."""

import json
import re

import pytest
import torch
from graph_runs import LINKS, NODES, PAPERS, make_config
from launching import final_weights
from retrieval_runs import make_loop, train_until
from test_loop import Recorder, assert_same_tree, curve

import outsize
from outsize.errors import ConfigError, DataError
from outsize.training.evaluate import evaluate
from outsize.training.run_folder import RunFolder


@pytest.fixture
def no_reports(monkeypatch):
    """Drawing takes longer than the runs."""
    monkeypatch.setattr("outsize.training.report.write_report", lambda *parts: None)


def fit(base, *settings):
    callbacks = Recorder()
    loop = make_loop(make_config(base, *settings), callbacks=callbacks)
    loop.fit()
    return loop, callbacks


def test_classes_of_nodes_come_near_the_best_accuracy():
    loop, _ = fit(
        NODES, "data.homophily=0.9", "train.epochs=5", "model.hidden=16", "embeddings.dim=16",
        "graph.fan_out=[10,10]", "optimizer.learning_rate=0.03", "train.validate_every=1000",
    )  # fmt: skip
    test = loop.state.test
    assert test["bayes_accuracy"] > 0.9
    assert test["accuracy"] > test["bayes_accuracy"] - 0.06
    assert loop.task.judge == "accuracy"


@pytest.mark.parametrize(
    "settings",
    [
        ["model.aggregate=gcn"],
        ["model.aggregate=max", "model.normalize=true", "model.dropout=0.2"],
        ["model.layers=1", "graph.fan_out=[-1]"],
        ["model.layers=3", "graph.fan_out=[2,2,2]", "graph.eval_fan_out=3"],
        ["embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=600",
         "embeddings.columns=2"],
        ["embeddings.kind=tables", "embeddings.method=hash", "embeddings.max_params=600"],
        ["data.words_per_node=3", "data.num_words=50"],
    ],
)  # fmt: skip
def test_every_shape_trains(settings):
    _, callbacks = fit(NODES, "train.epochs=3", "optimizer.learning_rate=0.01", *settings)
    losses = [line["loss"] for line in callbacks.of("train")]
    assert losses[-1] < losses[0]
    for line in callbacks.of("validation"):
        assert {"loss", "accuracy", "macro_f1", "bayes_accuracy"} < line.keys()


@pytest.mark.parametrize("settings", [[], ["data.multi_label=true"]])
def test_graphs_of_several_types_train(settings):
    loop, callbacks = fit(
        PAPERS, "train.epochs=5", "train.log_every=1", "optimizer.learning_rate=0.03", *settings
    )
    losses = [line["loss"] for line in callbacks.of("train")]
    assert losses[-1] < losses[0]
    judge = "micro_f1" if settings else "accuracy"
    assert loop.task.judge == judge
    assert judge in callbacks.of("test")[0]
    assert set(loop.task.embeddings.specs) == {
        "paper", "paper-words", "author", "venue"
    }  # fmt: skip


def test_nodes_without_a_label_are_not_trained_on():
    loop, _ = fit(PAPERS, "data.missing=half the labels")
    task = loop.task
    labels = torch.cat([batch.labels for batch in task.train_batches(0, 0)])
    assert len(labels) == 7
    assert int(labels.min()) >= 0


@pytest.mark.parametrize("kind", ["in-batch", "cache", "uniform", "exact", "queue"])
def test_links_train_against_every_kind_of_negatives(kind):
    _, callbacks = fit(
        LINKS, f"negatives.kind={kind}", "train.epochs=3", "train.validate_every=1000"
    )
    shares = [line["p_positive"] for line in callbacks.of("train")]
    assert shares[-1] > shares[0] or kind == "queue", "a queue is longer at the end"
    assert {"loss", "recall@20", "ndcg@10", "mrr@10"} < callbacks.of("test")[0].keys()


def test_links_between_types_train():
    _, callbacks = fit(
        {**LINKS, "data": PAPERS["data"]}, "data.links=true", "train.epochs=6", "train.log_every=1"
    )
    losses = [line["loss"] for line in callbacks.of("train")]
    assert losses[-1] < losses[0]


def test_links_of_an_undirected_relation_are_trained_and_known_in_both_directions():
    task = make_loop(make_config(LINKS)).task
    asked, wanted = task.data.known("train").pairs()
    pairs = set(zip(asked.tolist(), wanted.tolist(), strict=True))
    assert all((target, source) in pairs for source, target in pairs)


@pytest.mark.parametrize("excluded", [True, False])
def test_a_link_does_not_predict_itself(excluded):
    task = make_loop(make_config(LINKS, f"graph.exclude_links={str(excluded).lower()}",
                                 "graph.fan_out=[-1,-1]")).task  # fmt: skip
    seen = []
    forward = task.model.forward
    task.model.forward = lambda hood: seen.append(hood) or forward(hood)
    batch = next(task.train_batches(0, 0))
    task.loss(batch)
    links = set(zip(batch.query_rows.tolist(), batch.items.tolist(), strict=True))
    links |= {(target, source) for source, target in links}
    found = set()
    for hood in seen:
        edges, ids = hood.edges["edge"], hood.nodes["node"]
        lines = torch.arange(len(edges.starts) - 1).repeat_interleave(edges.starts.diff())
        found |= set(zip(ids[edges.sources].tolist(), ids[lines].tolist(), strict=True))
    assert found - links, "other edges stay"
    assert bool(found & links) != excluded


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        (NODES, ["model.dropout=0.3"]),
        (NODES, ["embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=600",
                 "embeddings.columns=2"]),
        (LINKS, ["negatives.kind=cache", "negatives.refresh=0.1", "train.epochs=1"]),
    ],
)  # fmt: skip
def test_a_run_that_is_resumed_is_bit_identical(tmp_path, base, settings, no_reports):
    config = make_config(base, *settings)
    outsize.train(config, tmp_path / "whole", quiet=True)
    train_until(3, config, tmp_path / "stopped")
    outsize.train(config, tmp_path / "stopped", resume=True, quiet=True)
    lines = [curve(tmp_path / name) for name in ("stopped", "whole")]
    for line in (line for one in lines for line in one):
        line.pop("seconds", None)  # of a clustering
    assert lines[0] == lines[1]
    assert_same_tree(final_weights(tmp_path / "stopped"), final_weights(tmp_path / "whole"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of classes and one of links, in a folder each."""
    folder = tmp_path_factory.mktemp("runs")
    nodes = outsize.train(make_config(NODES, "train.epochs=1"), folder / "nodes", quiet=True)
    links = outsize.train(make_config(LINKS, "train.epochs=1"), folder / "links", quiet=True)
    return {"nodes": nodes, "links": links}


def test_the_report_has_the_metrics(trained):
    page = (trained["nodes"].out / "report.html").read_text()
    assert "test accuracy" in page
    assert "macro-F1" in page
    assert f"{trained['nodes'].test['accuracy']:.5f}" in page
    assert json.loads(json.dumps(trained["nodes"].summary()))["test"]["macro_f1"] >= 0


@pytest.mark.parametrize("which", ["nodes", "links"])
def test_a_run_is_evaluated_on_its_own_splits(trained, which):
    result = trained[which]
    found = evaluate(result.out)
    assert found["step"] == result.best["step"]
    assert found["metrics"] == pytest.approx(result.test)
    expected = {name: value for name, value in result.best.items() if name != "step"}
    assert found["validation"] == pytest.approx(expected)


def test_what_a_graph_run_cannot_do_is_said_in_words(trained, tmp_path):
    out = trained["nodes"].out
    with pytest.raises(
        ConfigError, match="measured on the splits of its own data: leave --exclude"
    ):
        evaluate(out, exclude=["x.csv"])
    with pytest.raises(DataError, match=r"x\.csv: no such file"):
        evaluate(out, "x.csv")
    with pytest.raises(ConfigError, match="graph model, which cannot be quantized yet"):
        outsize.export_run(out, tmp_path / "export", quantize="int8")
    changed = RunFolder(out).config_file
    text = changed.read_text()
    changed.write_text(text.replace("homophily = 0.7", "homophily = 0.6"))
    with pytest.raises(ConfigError, match="the data has changed"):
        evaluate(out)
    with pytest.raises(ConfigError, match="the data has changed"):
        outsize.export_run(out, tmp_path / "export")
    assert not (tmp_path / "export").exists()
    changed.write_text(text)


@pytest.mark.parametrize(
    ("base", "settings", "message"),
    [
        (NODES, ["model.kind=dlrm", "model.hidden=8"], "but the kind is 'dlrm': remove it"),
        ({**NODES, "model": {"kind": "dlrm"}}, [], r"'dlrm' is for click data, but data.kind = "
         r"'synthetic-graph' is graph data"),
        ({"model": {"kind": "dlrm"}, "graph": {}}, [], r"\[graph\] belongs to a graph model"),
        ({"model": {"kind": "graphsage"}}, [], "'graphsage' is for graph data"),
        (NODES, ["graph.fan_out=[4]"], r"fan_out = \[4\] has 1 hops, but model.layers = 2"),
        (NODES, ["graph.fan_out=[4,0]"], "fan_out must be >= 1 for each hop, or -1"),
        (NODES, ["graph.eval_fan_out=0"], "eval_fan_out must be"),
        (NODES, ["graph.predict=edges"], "graph.predict must be one of 'nodes', 'links'"),
        (NODES, ["graph.predict=links"], r"but there is no \[negatives\]"),
        (LINKS, ["graph.predict=nodes"], r"\[negatives\] is for graph.predict = 'links'"),
        (NODES, ["retrieval.max_known=1"], r"\[retrieval\] is for graph.predict = 'links'"),
        (NODES, ["embeddings.store=served"], "'served' is for click models"),
        (NODES, ["model.aggregate=lstm"], "aggregate must be one of mean, gcn, max"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_refused(base, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_config(base, *settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "settings", "message"),
    [
        (PAPERS, ["data.missing=labels"], "needs labels, but the data has none"),
        (PAPERS, ["data.missing=a split"], "the validation split has no labelled node"),
        ({**LINKS, "data": PAPERS["data"]}, [], "needs edges that are held out"),
    ],
)
def test_data_that_does_not_fit_is_refused(base, settings, message):
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        make_loop(make_config(base, *settings))
