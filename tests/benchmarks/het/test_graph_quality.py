"""The comparison on real graphs runs, goes on where it was stopped, and reads what it says."""

import json

import numpy as np
import pytest

from benchmarks.het import graph_quality
from benchmarks.het.plain_graphsage import PlainSettings
from outsize.data.graphs.graph import Graph, GraphData, NodeLabels, NodeType, Relation


@pytest.fixture
def folder(tmp_path):
    """A file in the format of cora: two groups of 20 nodes, connected inside."""
    draw = np.random.default_rng(0)
    groups = np.repeat((0, 1), 20)
    linked = np.triu(draw.random((40, 40)) < 0.4, 1) & (groups[:, None] == groups)
    sources, targets = np.nonzero(linked)
    starts = np.concatenate(([0], np.bincount(sources, minlength=40).cumsum()))
    np.savez(tmp_path / "cora.npz", adj_indptr=starts, adj_indices=targets, labels=groups)
    return tmp_path


def test_cells_are_saved_and_not_run_again(folder, monkeypatch, capsys):
    quick = PlainSettings(dim=8, hidden=8, batch_size=8, epochs=6, rate=0.02)
    monkeypatch.setattr(graph_quality, "SETTINGS", {"cora": quick})
    out = folder / "out"
    words = ["--data", str(folder), "--out", str(out), "--only"]
    graph_quality.main([*words, "cora/outsize/0", "--only", "cora/torch/0"])
    graph_quality.main([*words, "cora/label"])
    found = {cell["method"]: cell for cell in
             json.loads((out / "graph-quality-cpu.json").read_text())}  # fmt: skip
    assert list(found) == list(graph_quality.METHODS)
    assert found["label-propagation"]["test"] == 1.0
    assert found["outsize"]["test"] > 0.7
    assert found["torch"]["test"] > 0.7
    page = (out / "graph-quality-cpu.md").read_text()
    assert "| cora | " in page
    capsys.readouterr()
    graph_quality.main([*words, "cora/outsize/0"])
    assert capsys.readouterr().out == ""


def test_patterns_choose_cells():
    cells = graph_quality.cells_of(["acl/torch"])
    assert cells == [("acl", "torch", seed) for seed in range(3)]
    assert len(graph_quality.cells_of([])) == 7 * (3 + 3 + 1)
    assert len(graph_quality.cells_of(["cora"])) == 7


def test_labels_spread_along_edges():
    sources, targets = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 4])
    starts = np.concatenate(([0], np.bincount(targets, minlength=5).cumsum()))
    graph = Graph({"node": NodeType(5)}, {"edge": Relation("node", "node", starts, sources)})
    labels = NodeLabels("node", np.array([1, 1, 1, 1, 1]), ("a", "b"))
    split = {"train": np.array([0]), "validation": np.array([4]), "test": np.array([3])}
    found = graph_quality.propagate_labels(GraphData(graph, "path", labels, split))
    assert found["test"] == 1.0
