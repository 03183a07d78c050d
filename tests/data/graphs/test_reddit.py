"""Graphs in the form of GraphSAGE's Reddit, as JSON and as the .npz files of DGL."""

import json

import numpy as np
import pytest

from outsize.data import RedditConfig
from outsize.data.graphs import json_stream
from outsize.data.graphs.json_stream import JsonStream
from outsize.errors import DataError

LINKS = [(0, 1), (1, 2), (2, 2), (3, 0), (0, 1)]


def grouped(data):
    relation = data.graph.relations["edge"]
    return [part.tolist() for part in np.split(relation.sources, relation.starts[1:-1])]


def write(folder, ids=("a", "b", "c", "d", "e"), ends=None, classes=None, prefix="reddit", **more):
    ends = ends or list(range(len(ids)))
    flags = [(False, False), (True, False), (False, True), (False, False), None]
    nodes = [
        {"id": name, "label": [1, 2], **({} if flag is None else {"val": flag[0], "test": flag[1]})}
        for name, flag in zip(ids, flags, strict=True)
    ]
    links = [{"source": ends[s], "target": ends[t], "train_removed": False} for s, t in LINKS]
    graph = {"directed": False, "graph": {"name": "x"}, "nodes": nodes, "links": links, **more}
    (folder / f"{prefix}-G.json").write_text(json.dumps(graph))
    classes = classes or {str(name): number % 2 for number, name in enumerate(ids)}
    (folder / f"{prefix}-class_map.json").write_text(json.dumps(classes))
    (folder / f"{prefix}-id_map.json").write_text(
        json.dumps({str(n): i for i, n in enumerate(ids)})
    )


@pytest.mark.parametrize(
    ("ids", "ends"),
    [
        (("a", "b", "c", "d", "e"), None),  # links by place
        (("a", "b", "c", "d", "e"), ("a", "b", "c", "d", "e")),  # by id
        ((0, 1, 2, 3, 4), None),
        ((50, 40, 30, 20, 10), (50, 40, 30, 20, 10)),  # by ids that are integers
    ],
)
def test_json_files_are_read(tmp_path, ids, ends):
    write(tmp_path, ids, ends)
    data = RedditConfig(path=str(tmp_path)).build()
    assert grouped(data) == [[1, 3], [0, 2], [1], [0], []]
    assert data.graph.nodes["node"].names.to_pylist() == [str(name) for name in ids]
    assert data.labels.classes.tolist() == [0, 1, 0, 1, 0]
    assert {s: nodes.tolist() for s, nodes in data.labelled.items()} == {
        "train": [0, 3], "validation": [1], "test": [2]
    }  # fmt: skip


def test_labels_may_be_lists_and_may_be_missing(tmp_path):
    classes = {"a": [0, 1, 1], "b": [1, 0, 0], "c": [0, 0, 0], "x": [0, 0, 1]}
    write(tmp_path, classes=classes, prefix="ppi")
    data = RedditConfig(path=str(tmp_path), prefix="ppi").build()
    assert data.labels.classes.tolist()[:3] == [[0, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert data.labelled["train"].tolist() == [0]  # the other one has no label


def test_npz_files_are_read(tmp_path):
    row, column = np.array(LINKS, np.int32).T
    arrays = {"row": row, "col": column, "data": np.ones(5), "shape": np.array([5, 5])}
    np.savez(tmp_path / "reddit_graph.npz", format=np.array(b"coo"), **arrays)
    np.savez(
        tmp_path / "reddit_data.npz", label=np.array([5, 1, 5, 1, 1]), node_ids=np.arange(5),
        node_types=np.array([1, 1, 2, 3, 1]), feature=np.ones((5, 3)),
    )  # fmt: skip
    data = RedditConfig(path=str(tmp_path)).build()
    assert grouped(data) == [[1, 3], [0, 2], [1], [0], []]
    assert data.labels.class_names == ("1", "5")
    assert data.labelled["train"].tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": [{"source": 0, "target": 9}]}, "an edge has the target 9"),
        ({"links": [{"source": 0}]}, "the target of a link is not a node: None"),
        ({"links": [{"source": "a", "target": "z"}]}, "a link has a node that is not among"),
        ({"nodes": [{"val": False}]}, "node 0 has no id"),
        ({"nodes": [{"id": 1}, {"id": "1"}]}, "two nodes have the same id"),
        ({"nodes": []}, "there is no node"),
    ],
)
def test_graphs_that_do_not_fit_are_one_clear_line(tmp_path, changes, words):
    write(tmp_path, **changes)
    with pytest.raises(DataError, match=words):
        RedditConfig(path=str(tmp_path)).build()


def test_labels_that_do_not_fit_are_one_clear_line(tmp_path):
    for classes, words in (
        ({"a": [0, 1], "b": [1]}, "another length"),
        ({"a": [0, 2]}, "not a list of 0 and 1"),
        ({"a": "x"}, "not the number of a class"),
        ({"z": 1}, "no node has a label"),
    ):
        write(tmp_path, classes=classes)
        with pytest.raises(DataError, match=words):
            RedditConfig(path=str(tmp_path)).build()


def test_a_folder_without_the_files_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"has neither reddit-G\.json nor reddit_graph\.npz"):
        RedditConfig(path=str(tmp_path)).build()
    write(tmp_path)
    path = tmp_path / "reddit-G.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match=r"reddit-G\.json is not readable JSON"):
        RedditConfig(path=str(tmp_path)).build()


@pytest.mark.parametrize("block", [1, 3, 17, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_streamed_as_it_would_be_read_whole(tmp_path, block, indent, monkeypatch):
    monkeypatch.setattr(json_stream, "_BLOCK_CHARACTERS", block)
    flat = [{"a": i, "b": "}, {]"[: i % 6]} for i in range(20)]
    nested = [{"a": {"b": [i, {"c": "]"}]}} for i in range(5)]
    content = {"x": 12.5, "flat": flat, "none": [], "nested": nested, "y": [1, [2]], "z": -3}
    path = tmp_path / "some.json"
    path.write_text(json.dumps(content, indent=indent))
    found = list(JsonStream(path).members("flat", "nested", "none"))
    wanted = [("x", 12.5), *(("flat", e) for e in flat), *(("nested", e) for e in nested)]
    assert found == [*wanted, ("y", [1, [2]]), ("z", -3)]
    path.write_text("{}")
    assert not list(JsonStream(path).members())
    for broken in ("", "[1]", '{"a": 1', '{"a" 1}', '{"flat": [1 2]}', '{"a": 1]x'):
        path.write_text(broken)
        if broken == '{"a": 1]x':
            continue
        with pytest.raises(DataError, match="is not readable JSON"):
            list(JsonStream(path).members("flat"))
