"""Exported models of links: pairs of raw ids in, scores out; and the best targets."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
from graph_exports import papers_config, train, write_files

import outsize
from outsize.cli import main
from outsize.data.graphs.sampling import NeighborSampler
from outsize.errors import ConfigError, DataError, ExportError
from outsize.training import export_run
from outsize.training.evaluate import evaluate
from outsize.training.export_graph import load_graph_run
from outsize.training.run_folder import RunFolder

LINKS = ["graph.predict=links", "negatives.kind=in-batch", "negatives.learn_beta=true",
         "train.epochs=2"]  # fmt: skip


class Trained:
    """A run on links of a relation, its export, and what was loaded of the run."""

    def __init__(self, folder, relation, columns):
        write_files(folder)
        self.folder, self.export, self.columns = folder, folder / "exported", columns
        config = papers_config(folder, *LINKS, f"data.links.relation={relation}",
                               "data.links.validation=0.2", "data.links.test=0.3")  # fmt: skip
        self.result = train(config, folder / "run")
        self.summary = export_run(self.result.out, self.export)
        self.run = load_graph_run(RunFolder(self.result.out))
        self.model = outsize.load_exported(self.export)

    def names(self, kind):
        return self.run.data.graph.nodes[kind].names.to_pylist()

    def vectors(self, kind):
        """The vectors of all nodes of a type as the run's evaluation computes them."""
        self.run.model.eval()
        sampler = NeighborSampler(self.run.data.graph, [-1])
        return self.run.model.encode_all(sampler, kind)

    def links_file(self, path, *splits):
        """The links of splits as the run sees them; training links in both directions."""
        kinds = [self.run.task._source_type, self.run.task._target_type]
        lines = [",".join(self.columns)]
        for split in splits:
            pairs = zip(*(part.tolist() for part in self.run.task.data._pairs[split]), strict=True)
            for pair in pairs:
                ends = (self.names(kind)[node] for kind, node in zip(kinds, pair, strict=True))
                lines.append(",".join(map(str, ends)))
        path.write_text("\n".join(lines))
        return path


@pytest.fixture(scope="module")
def cites(tmp_path_factory):
    """Links between papers; tests only read it."""
    return Trained(tmp_path_factory.mktemp("cites"), "cites", ("from", "to"))


@pytest.fixture(scope="module")
def writes(tmp_path_factory):
    """Links from authors, whose ids are integers, to papers; tests only read it."""
    return Trained(tmp_path_factory.mktemp("writes"), "writes", ("author", "paper"))


def run_command(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


@pytest.mark.parametrize("name", ["cites", "writes"])
def test_scores_and_searches_are_those_of_the_run(name, request):
    trained = request.getfixturevalue(name)
    source, target = trained.columns
    kinds = ("paper", "paper") if name == "cites" else ("author", "paper")
    sources, targets = (trained.names(kind)[3:9] for kind in kinds)
    own, other = (trained.vectors(kind) for kind in kinds)
    expected = (own[3:9] * other[3:9].flip(0)).sum(1).numpy()
    found = trained.model.predict({source: sources, target: targets[::-1]})
    np.testing.assert_allclose(found, expected, atol=1e-6)
    best = trained.model.search({source: sources}, k=4)
    scores = own[3:9] @ other.T
    if name == "cites":
        scores[torch.arange(6), torch.arange(3, 9)] = -torch.inf  # none is its own target
    order = scores.topk(4)
    assert best.items == [[trained.names("paper")[i] for i in x] for x in order.indices.tolist()]
    np.testing.assert_allclose(best.scores, order.values.numpy(), atol=1e-6)
    assert trained.model.classes == ()


@pytest.mark.parametrize("name", ["cites", "writes"])
@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_file_of_held_out_links_has_the_metrics_of_the_run(name, split, request, tmp_path):
    trained = request.getfixturevalue(name)
    file = trained.links_file(tmp_path / "links.csv", split)
    known = ["train"] if split == "validation" else ["train", "validation"]
    seen = trained.links_file(tmp_path / "seen.csv", *known)
    expected = trained.result.test if split == "test" else trained.result.best
    wanted = {name: value for name, value in expected.items() if name != "step"}
    found = [evaluate(place, file, exclude=[seen], quiet=True)
             for place in (trained.result.out, trained.export)]  # fmt: skip
    if split == "test":
        found.append(evaluate(trained.result.out, file, quiet=True))
    for summary in found:
        assert summary["metrics"] == pytest.approx(wanted, rel=1e-4)
        assert summary["note"] == ""
    assert "--exclude" in evaluate(trained.export, file, quiet=True)["note"]


def test_new_sources_come_with_their_neighbors(cites, writes):
    rows = [{"from": "new", "cites": ["p0", "p3"], "writes": [100]}, {"from": "p5"}]
    found = cites.model.search(rows, k=3)
    assert found.items[1] == cites.model.search({"from": ["p5"]}, k=3).items[0]
    targets = [{**rows[0], "to": item} for item in found.items[0]]
    np.testing.assert_allclose(cites.model.predict(targets), found.scores[0], atol=1e-6)
    author = [{"author": 7, "rev_writes": "p1|p4"}]
    assert len(writes.model.search(author, k=3).items[0]) == 3


def test_excluded_targets_are_not_found(cites, writes):
    plain = writes.model.search({"author": [101, 102]}, k=60)
    exclude = [plain.items[0][:3], None]
    found = writes.model.search({"author": [101, 102]}, k=5, exclude=exclude)
    assert found.items == [plain.items[0][3:8], plain.items[1][:5]]
    with pytest.warns(UserWarning, match="1 of the ids to exclude are of no item"):
        cites.model.search({"from": ["p1"]}, k=2, exclude=[["p99"]])
    with pytest.raises(DataError, match="exclude has 2 lists"):
        cites.model.search({"from": ["p1"]}, exclude=[[], []])
    everything = cites.model.search({"from": ["p1"]}, k=100)
    assert len(everything.items[0]) == 59
    assert np.isneginf(everything.scores[0, 59:]).all()


@pytest.mark.parametrize("given", [[101], [101.0], ["101"], np.array([101], np.int32)])
def test_integer_ids_are_taken_in_every_form(writes, given):
    expected = writes.model.search({"author": [101]}, k=3)
    assert writes.model.search({"author": given}, k=3).items == expected.items


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"author": [101]}, "the rows have no column 'paper'"),
        ({"paper": ["p1"]}, "the rows have no column 'author'"),
        ({"author": [101, 101], "paper": ["p1", None]}, "row 1 is a missing value of 'paper'"),
        ({"author": [None, 101], "paper": ["p1", "p1"]}, "row 0 is a missing value of 'author'"),
        ({"author": [101], "paper": ["p99"]}, "row 0: 'p99' is a value of 'paper' that the graph"),
        ({"author": ["0101"], "paper": ["p1"]}, "row 0: '0101' is an id that the graph does not"),
        ({"author": [10**30], "paper": ["p1"]}, "is an id that the graph does not have"),
    ],
)
def test_pairs_that_cannot_be_scored_are_named(writes, rows, message):
    with pytest.raises(DataError) as caught:
        writes.model.predict(rows)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_pairs_can_be_skipped(writes):
    rows = {"author": [101, None, 5, 102], "paper": ["p1", "p1", "p1", "p99"]}
    found = writes.model.predict(rows, skip_bad=True)
    assert np.isnan(found).tolist() == [False, True, True, True]


def test_the_command_scores_pairs(writes, tmp_path):
    file, out = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    file.write_text("paper,note,author\np1,a,101\np99,b,101\np2,c,102\n")
    words = ("predict", writes.export, file, "--out", out)
    assert run_command(*words, "--keep", "note", "--max-bad-rows", 0.5) == 0
    lines = list(csv.DictReader(out.read_text().splitlines()))
    assert [(line["row"], line["note"]) for line in lines] == [("0", "a"), ("2", "c")]
    expected = writes.model.predict({"author": [101, 102], "paper": ["p1", "p2"]})
    assert [float(line["score"]) for line in lines] == pytest.approx(expected, abs=1e-6)
    assert run_command(*words) == 2
    assert run_command(*words, "--max-bad-rows", 0.5, "--top", 3) == 2


def test_the_command_finds_targets(cites, tmp_path, capfd):
    file, out, seen = tmp_path / "from.csv", tmp_path / "found.csv", tmp_path / "seen.csv"
    file.write_text("from\np1\np2\n")
    best = cites.model.search({"from": ["p1", "p2"]}, k=9)
    rows = [f"p1,{target}" for target in best.items[0][:4]]
    seen.write_text("\n".join(["from,to", *rows, "p1,p99", f"p3,{best.items[1][0]}"]))
    words = ("predict", cites.export, file, "--out", out, "--top", 3)
    assert run_command(*words, "--exclude", seen) == 0
    assert "note: 1 of the ids to exclude" in " ".join(capfd.readouterr().err.split())
    lines = list(csv.DictReader(out.read_text().splitlines()))
    assert [line["target"] for line in lines] == [*best.items[0][4:7], *best.items[1][:3]]
    assert [(line["row"], line["rank"]) for line in lines] == [
        (row, rank) for row in "01" for rank in "123"
    ]


def test_links_that_cannot_be_evaluated_are_refused(cites, tmp_path):
    file = tmp_path / "links.csv"
    file.write_text("from,to,cites\nnew,p1,p2\n")
    with pytest.raises(DataError, match="1 links lead from nodes that the graph does not have"):
        evaluate(cites.export, file, quiet=True)
    train = cites.links_file(file, "train")
    with pytest.raises(DataError, match="every one is known already"):
        evaluate(cites.result.out, train, quiet=True)
    with pytest.raises(ConfigError, match="leave --exclude out, or name a file"):
        evaluate(cites.result.out, exclude=[file])


def test_vectors_that_are_damaged_are_refused(cites, tmp_path):
    folder = shutil.copytree(cites.export, tmp_path / "copy")
    (folder / "vectors.safetensors").write_bytes(b"")
    with pytest.raises(ExportError, match=r"vectors\.safetensors"):
        outsize.load_exported(folder)


def test_the_card_names_the_columns_and_metrics(writes):
    card = json.loads((writes.export / "card.json").read_text())
    assert [(f["column"], f["ids"]) for f in card["features"]] == [
        ("author", "author"), ("paper", "paper"), ("rev_writes", "paper")
    ]  # fmt: skip
    assert any("@" in name for name in card["metrics"][0])
    assert set(writes.summary["files"]) == {
        "model.safetensors", "graph.safetensors", "vectors.safetensors"
    }  # fmt: skip
