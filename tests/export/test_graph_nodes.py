"""Exported models of the classes of nodes: raw ids in, probabilities out."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import processes
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from graph_exports import TOPICS, papers_config, train, write_files

import outsize
from outsize.cli import main
from outsize.data.graphs.sampling import NeighborSampler
from outsize.errors import ConfigError, DataError, ExportError
from outsize.export.serving import make_app
from outsize.export.tracing import _require_traceable
from outsize.training import export_run
from outsize.training.evaluate import evaluate
from outsize.training.export_graph import load_graph_run
from outsize.training.run_folder import RunFolder


class Trained:
    """A run, its export, and what was loaded of the run."""

    def __init__(self, folder, *settings):
        write_files(folder)
        self.folder, self.export = folder, folder / "exported"
        self.result = train(papers_config(folder, *settings), folder / "run")
        self.summary = export_run(self.result.out, self.export)
        self.run = load_graph_run(RunFolder(self.result.out))

    def logits(self):
        """The logits of all papers as the run's evaluation computes them."""
        self.run.model.eval()
        sampler = NeighborSampler(self.run.data.graph, [-1])
        return self.run.model.encode_all(sampler, "paper")

    def split_file(self, path, split):
        """The rows of the papers of a split."""
        names = self.run.data.graph.nodes["paper"].names.to_pylist()
        wanted = {names[node] for node in self.run.data.labelled[split]}
        header, *lines = (self.folder / "papers.csv").read_text().splitlines()
        path.write_text("\n".join([header, *(x for x in lines if x.split(",")[0] in wanted)]))
        return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Tests only read it."""
    return Trained(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def model(trained):
    return outsize.load_exported(trained.export)


def run_command(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


def test_probabilities_of_raw_ids_are_those_of_the_run(trained, model):
    ids = trained.run.data.graph.nodes["paper"].names.to_pylist()
    found = model.predict({"paper_id": ids})
    expected = torch.softmax(trained.logits().double(), 1).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert model.classes == TOPICS
    some = model.predict({"paper_id": ["p7", "p0", "p7"]}, logits=True)
    assert some.dtype == np.float32
    places = [ids.index("p7"), ids.index("p0"), ids.index("p7")]
    np.testing.assert_allclose(some, trained.logits()[places].numpy(), atol=1e-5)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_a_split_has_the_metrics_of_the_run(trained, tmp_path, split):
    file = trained.split_file(tmp_path / "papers.csv", split)
    expected = trained.result.test if split == "test" else trained.result.best
    wanted = {name: value for name, value in expected.items() if name != "step"}
    for source in (trained.result.out, trained.export):
        found = evaluate(source, file, quiet=True)
        assert found["metrics"] == pytest.approx(wanted, rel=1e-5)
        assert found["step"] == trained.result.best["step"]
        assert found["num_rows"] == len(trained.run.data.labelled[split])
        assert found["note"] == ""


def test_the_card_has_metrics_and_columns(trained):
    card = json.loads((trained.export / "card.json").read_text())
    test = {"split": "test", "step": trained.result.best["step"], **trained.result.test}
    assert test in card["metrics"]
    assert card["versions"]["export_format"] == 4
    assert [fact["column"] for fact in card["features"]] == [
        "paper_id", "cites", "writes", "words"
    ]  # fmt: skip
    readme = (trained.export / "README.md").read_text()
    assert "accuracy" in readme
    assert "| writes | of a new node: list of neighbours |" in readme
    assert set(trained.summary["files"]) == {"model.safetensors", "graph.safetensors"}


FRESH = """
import json, sys, outsize
rows = [{"paper_id": "p1"}, {"paper_id": "new", "cites": ["p3", "p6"]}]
logits = outsize.load_exported(sys.argv[1]).predict(rows, logits=True)
print(json.dumps(logits.tolist()))
"""


def test_a_fresh_process_needs_the_export_only(trained, model, tmp_path):
    folder = shutil.copytree(trained.export, tmp_path / "copy")
    away = trained.folder.with_name("away")
    trained.folder.rename(away)
    try:
        done = processes.run("-c", FRESH, folder, cwd=tmp_path, timeout=120)
    finally:
        away.rename(trained.folder)
    assert done.returncode == 0, done.stderr
    rows = [{"paper_id": "p1"}, {"paper_id": "new", "cites": ["p3", "p6"]}]
    expected = model.predict(rows, logits=True)
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-6)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists its mappings")
def test_the_graph_is_memory_mapped(trained, model):
    mapped = [
        [int(edge, 16) for edge in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(trained.export / "graph.safetensors"))
    ]
    graph = model.predictor.encoder.graph
    arrays = [own for r in graph.relations.values() for own in (r.starts, r.sources)]
    arrays += [bags.values for bags in graph.nodes["paper"].attributes.values()]
    for array in arrays:
        assert any(first <= array.ctypes.data < last for first, last in mapped)
        assert array.flags.aligned


def test_every_form_of_rows_is_taken(model):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    rows = [{"paper_id": "p1", "writes": []}, {"paper_id": "new", "writes": [101, 104]}]
    expected = model.predict(rows)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    frames = [columns, pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)]
    frames += [pa.RecordBatch.from_pydict(columns), {**columns, "writes": ["", "101| 104"]}]
    for frame in frames:
        np.testing.assert_array_equal(model.predict(frame), expected)


def test_new_nodes_are_predicted_through_neighbors_and_attributes(model):
    graph = model.predictor.encoder.graph
    names = graph.nodes["paper"].names.to_pylist()
    found = []
    for topic in range(3):
        cites = [f"p{number}" for number in range(topic, 57, 3)]
        writes = [100 + topic * 5, 103 + topic * 5]
        found.append({"paper_id": "a new one", "cites": cites, "writes": writes})
    assert model.predict(found).argmax(1).tolist() == [0, 1, 2]
    alone = model.predict([{"paper_id": "a new one", "words": ["w0", "never seen"]}])
    assert alone.shape == (1, 3)
    assert "a new one" not in names


def test_the_edges_of_a_known_node_are_those_of_the_graph(model):
    plain = model.predict({"paper_id": ["p3"]})
    given = model.predict([{"paper_id": "p3", "cites": ["p1"], "words": ["w1"]}])
    np.testing.assert_array_equal(given, plain)


def test_unknown_neighbors_are_left_out_with_a_warning(model):
    rows = {"paper_id": ["x", "p2"], "cites": [["p1", "p99", "p98"], []]}
    with pytest.warns(UserWarning, match=r"2 of the neighbours are of no node .* 'p99'; they"):
        found = model.predict(rows)
    np.testing.assert_array_equal(found[:1], model.predict([{"paper_id": "x", "cites": ["p1"]}]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"paper": ["p1"]}, "the rows have no column 'paper_id'; they have: paper"),
        ({"paper_id": ["p1", None]}, "row 1 is a missing value of 'paper_id'"),
        ({"paper_id": ["p1", "p99"]}, "row 1: 'p99' is an id that the graph does not have, "
         "without known neighbours (they would be in cites, writes, words)"),
        ({"paper_id": ["p99"], "cites": [[]], "words": [["?"]]}, "row 0: 'p99' is an id that"),
        ({"paper_id": [{"a": 1}]}, "column 'paper_id' of struct<a: int64> cannot be read as ids"),
        ("p1", "rows must be a dict of lists"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_scored_are_named(model, rows, message):
    with pytest.raises(DataError) as caught:
        model.predict(rows)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_rows_can_be_skipped(model):
    found = model.predict({"paper_id": ["p1", "p99", None, "p2"]}, skip_bad=True)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_array_equal(found[[0, 3]], model.predict({"paper_id": ["p1", "p2"]}))
    assert model.predict({"paper_id": []}).shape == (0, 3)


def test_there_are_no_links_to_search(model):
    with pytest.raises(ConfigError, match="predicts the classes of nodes"):
        model.search({"paper_id": ["p1"]})


def test_a_model_that_was_not_exported_says_so(trained):
    with pytest.raises(ConfigError, match="does not know raw ids: export its run"):
        trained.result.model.predict({"paper_id": ["p1"]})


@pytest.mark.parametrize("name", ["graph.safetensors", "model.safetensors"])
def test_damaged_files_are_refused(trained, tmp_path, name):
    folder = shutil.copytree(trained.export, tmp_path / "copy")
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ExportError, match=f"{name}: its checksum"):
        outsize.load_exported(folder)
    (folder / name).unlink()
    with pytest.raises(ExportError, match=f"{name}: it is missing"):
        outsize.load_exported(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph["relations"][0].update(source="book"), "'book'"),
        (lambda graph: graph["nodes"][0].update(num_nodes=61), "do not fit the number of nodes"),
        (lambda graph: graph["columns"].pop("id"), "id is missing"),
        (lambda graph: graph.update(classes=None), "neither classes of nodes nor links"),
        (lambda graph: graph["nodes"][0].update(ids="words"), "ids"),
        (lambda graph: graph["relations"].append({**graph["relations"][0], "name": "likes"}),
         "likes"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused_in_one_line(
    trained, tmp_path, change, message
):
    folder = shutil.copytree(trained.export, tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    change(config["graph"])
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError) as caught:
        outsize.load_exported(folder)
    assert "cannot be loaded" in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_writes_the_best_classes_of_a_file(trained, model, tmp_path, capfd):
    path, out = tmp_path / "nodes.csv", tmp_path / "classes.csv"
    path.write_text("paper_id,cites\np1,\nnew,p3|p6|p98\np99,\n")
    assert run_command("predict", trained.export, path, "--out", out, "--top", 2,
                       "--keep", "paper_id", "--max-bad-rows", 0.5) == 0  # fmt: skip
    said = " ".join(capfd.readouterr().err.split())
    assert "1 with an id that the graph does not have" in said
    assert "note: 1 of the neighbours are of no node of the graph, such as 'p98'" in said
    lines = list(csv.DictReader(out.read_text().splitlines()))
    with pytest.warns(UserWarning, match="'p98'"):
        found = model.predict(
            [{"paper_id": "p1"}, {"paper_id": "new", "cites": ["p3", "p6", "p98"]}]
        )
    order = np.argsort(-found, axis=1)[:, :2]
    assert [line["class"] for line in lines] == [TOPICS[i] for i in order.ravel()]
    assert [(line["row"], line["paper_id"], line["rank"]) for line in lines] == [
        ("0", "p1", "1"), ("0", "p1", "2"), ("1", "new", "1"), ("1", "new", "2")
    ]  # fmt: skip
    values = [float(line["probability"]) for line in lines]
    assert values == pytest.approx(np.take_along_axis(found, order, 1).ravel(), abs=1e-6)


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        ("paper,topic\np1,logic\n", (), "has no column 'paper_id'; it has: paper, topic"),
        ("paper_id\np1\np99\n", (), "line 3: 'p99'"),
        ("paper_id\np1\n,\n", (), "malformed"),
        ("paper_id\n", (), "there is no row of data"),
        ("paper_id\np1\n", ("--exclude", "{file}"), "--exclude is for links"),
        ("paper_id\np1\n", ("--top", "0"), "--top must be >= 1"),
    ],
)
def test_files_that_cannot_be_predicted_are_refused_in_one_line(
    trained, tmp_path, capfd, content, words, message
):
    file, out = tmp_path / "nodes.csv", tmp_path / "out.csv"
    file.write_text(content)
    given = [word.format(file=file) for word in words]
    assert run_command("predict", trained.export, file, "--out", out, *given) == 2
    assert message in " ".join(capfd.readouterr().err.split())
    assert not out.exists()


def test_rows_without_a_known_class_are_not_evaluated(trained, tmp_path, capfd):
    file = tmp_path / "papers.csv"
    file.write_text("paper_id,topic,writes\np1,logic,\np2,,\np4,chess,\nnew,music,111|112\n")
    found = evaluate(trained.export, file, quiet=True)
    assert found["num_rows"] == 2
    assert "1 classes are none that the model knows, such as 'chess'" in found["note"]
    file.write_text("paper_id,topic\np1,chess\n")
    with pytest.raises(DataError, match=r"no row has a class that the model knows .* 'chess'"):
        evaluate(trained.export, file, quiet=True)
    file.write_text("paper_id,topic\np1,logic\np99,logic\n")
    assert run_command("evaluate", trained.export, file) == 2
    assert "'p99'" in capfd.readouterr().err
    assert evaluate(trained.export, file, max_bad_rows=0.5, quiet=True)["num_bad"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "{export}"), "is measured on a labelled file"),
        (("evaluate", "{export}", "{file}", "--step", "3"), "an export has one set of weights"),
        (("evaluate", "{export}", "{file}", "--exclude", "{file}"), "--exclude is for links"),
        (("export", "{run}", "{new}", "--quantize", "int8"), "cannot be quantized"),
        (("export", "{export}", "{new}", "--quantize", "int8"), "graph model"),
        (("export", "{run}", "{new}", "--onnx"), "ONNX files are of click models"),
        (("serve", "{export}", "--port", "0"), "only click models"),
    ],
)
def test_what_graph_models_do_not_have_is_refused_in_one_line(
    trained, tmp_path, capfd, words, message
):
    file = tmp_path / "nodes.csv"
    file.write_text("paper_id,topic\np1,logic\n")
    places = {"export": trained.export, "run": trained.result.out, "file": file,
              "new": tmp_path / "new"}  # fmt: skip
    assert run_command(*(word.format(**places) for word in words)) == 2
    assert message in " ".join(capfd.readouterr().err.split())
    assert not places["new"].exists()


def test_graph_models_are_neither_traced_nor_served(trained, model):
    with pytest.raises(ConfigError, match="only click models are traced"):
        _require_traceable(model, ())
    with pytest.raises(ConfigError, match="only click models"):
        make_app(trained.export)


def test_several_classes_have_probabilities_of_their_own(tmp_path, capfd):
    write_files(tmp_path)
    text = (tmp_path / "papers.csv").read_text().replace(",music", ",music;logic")
    (tmp_path / "papers.csv").write_text(text)
    config = papers_config(
        tmp_path, "data.node_types.paper.label_separator=;", "train.epochs=1",
        "graph.eval_fan_out=1",
    )  # fmt: skip
    result = train(config, tmp_path / "run")
    export_run(result.out, tmp_path / "exported")
    model = outsize.load_exported(tmp_path / "exported")
    run = load_graph_run(RunFolder(result.out))
    nodes, names = run.data.labelled["test"], run.data.graph.nodes["paper"].names.to_pylist()
    wanted = {names[node] for node in nodes}
    header, *lines = text.splitlines()
    file = tmp_path / "test.csv"
    file.write_text("\n".join([header, *(x for x in lines if x.split(",")[0] in wanted)]))
    found = evaluate(tmp_path / "exported", file, quiet=True)
    assert found["metrics"] == pytest.approx(result.test, rel=1e-5)  # one drawn neighbour
    both = model.predict({"paper_id": ["p1"]})
    logits = model.predict({"paper_id": ["p1"]}, logits=True)
    np.testing.assert_allclose(both, 1 / (1 + np.exp(-logits.astype(np.float64))))
    assert run_command("predict", tmp_path / "exported", file, "--out", tmp_path / "o.parquet") == 0
    assert pq.read_table(tmp_path / "o.parquet").num_rows == 3 * len(nodes)
