"""Graphs of one .npz file, in the forms that benchmarks publish."""

import numpy as np
import pytest

from outsize.data import LinkSplit, NpzGraphConfig
from outsize.errors import DataError

EDGES = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [4, 4]])
LABELS = np.array([0, 1, 0, 1, 0, 1] * 20)


def sparse(prefix, rows, columns, shape):
    order = np.lexsort((columns, rows))
    starts = np.searchsorted(rows[order], np.arange(shape[0] + 1))
    return {
        f"{prefix}data": np.ones(len(rows), np.float32), f"{prefix}indices": columns[order],
        f"{prefix}indptr": starts, f"{prefix}shape": np.array(shape),
    }  # fmt: skip


def build(tmp_path, settings=None, **arrays):
    np.savez(tmp_path / "g.npz", **arrays)
    return NpzGraphConfig(path=str(tmp_path / "g.npz"), **(settings or {})).build()


def neighbors(data, node):
    edges = data.graph.relations["edge"]
    return edges.sources[edges.starts[node] : edges.starts[node + 1]].tolist()


@pytest.mark.parametrize("names", [("adj_", "attr_"), ("adj_matrix.", "attr_matrix.")])
def test_sparse_matrices_are_read(tmp_path, names):
    adjacency = sparse(names[0], EDGES[:, 0], EDGES[:, 1], (120, 120))
    adjacency[f"{names[0]}data"][3] = 0  # an edge that is stored, but is none: 3 → 0
    attributes = sparse(names[1], np.array([0, 0, 5]), np.array([7, 2, 9]), (120, 10))
    data = build(
        tmp_path, labels=LABELS.astype(np.int8), class_names=np.array(["x", "y"]),
        node_names=np.array([f"n{i}" for i in range(120)]), **adjacency, **attributes,
    )  # fmt: skip
    assert [neighbors(data, node) for node in range(5)] == [[1], [0, 2], [1, 3], [2], []]
    words = data.graph.nodes["node"].attributes["words"]
    assert words.num_ids == 10
    assert (words.values.tolist(), words.starts[[0, 1, 5, 6]].tolist()) == ([2, 7, 9], [0, 2, 2, 3])
    assert data.labels.class_names == ("x", "y")
    assert data.graph.nodes["node"].names[3].as_py() == "n3"
    assert sum(map(len, data.labelled.values())) == 120


def test_edges_with_sparse_features_are_read(tmp_path):
    starts = np.minimum(np.arange(121), 2)
    arrays = {"feat_indptr": starts, "feat_indices": np.array([5, 1], np.int16)}
    data = build(tmp_path, edges=EDGES, labels=LABELS, **arrays)
    assert neighbors(data, 0) == [1, 3]
    assert data.graph.nodes["node"].attributes["words"].num_ids == 6
    ids_only = NpzGraphConfig(path=str(tmp_path / "g.npz"), attributes=False).build()
    assert not ids_only.graph.nodes["node"].attributes


@pytest.mark.parametrize("turned", [False, True])
def test_masks_give_the_splits_and_dense_features_are_left_out(tmp_path, turned, capsys):
    masks = {f"{name}_masks": np.zeros((3, 120), bool) for name in ("train", "val", "test")}
    for number, mask in enumerate(masks.values()):
        mask[1, number * 10 : number * 10 + 5] = True
        mask[0, 50 + number] = True
    arrays = {"node_labels": LABELS, "node_features": np.ones((120, 4), np.float32), **masks}
    arrays["edge_index" if turned else "edges"] = EDGES.T if turned else EDGES
    data = build(tmp_path, {"split_number": 1}, **arrays)
    assert data.labelled["validation"].tolist() == [10, 11, 12, 13, 14]
    assert build(tmp_path, **arrays).labelled["test"].tolist() == [52]
    assert "node_features is dense and is left out" in capsys.readouterr().err
    with pytest.raises(DataError, match="no labelled node is in the train split"):
        build(tmp_path, {"split_number": 2}, **arrays)
    with pytest.raises(DataError, match="has 3 splits, numbered from 0, but split_number is 3"):
        build(tmp_path, {"split_number": 3}, **arrays)


def test_labels_may_be_missing_or_several(tmp_path):
    some = np.where(np.arange(120) % 2, np.nan, LABELS)
    data = build(tmp_path, edges=EDGES, labels=some)
    assert data.labels.classes[:3].tolist() == [0, -1, 0]
    assert data.labels.class_names == ("0",)  # the odd nodes had all of class 1
    several = np.stack((LABELS, np.ones(120)), axis=1)
    data = build(tmp_path, edges=EDGES, labels=several)
    assert data.labels.is_multi_label
    assert data.labels.classes[1].tolist() == [1, 1]
    data = build(tmp_path, edges=EDGES, labels=np.stack((1 - LABELS, LABELS), axis=1))
    assert data.labels.classes.tolist() == LABELS.tolist()  # one of two, written in full


def test_links_can_be_held_out(tmp_path):
    edges = np.random.default_rng(0).integers(0, 120, (400, 2))
    data = build(tmp_path, {"links": LinkSplit()}, edges=edges, labels=LABELS)
    assert data.link_relation == "edge"
    assert set(data.links) == {"train", "validation", "test"}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"edges": np.array([[0, 120]])},
            "an edge has the target 120, but there are only the nodes",
        ),
        ({"edges": np.array([[-1, 0]])}, "an edge has the source -1"),
        ({"edges": np.array([[0.5, 1]])}, "edges must hold whole numbers"),
        ({"edges": np.zeros((3, 3), int)}, "must have the shape"),
        ({"edges": EDGES, "labels": np.array([{}] * 120)}, "labels holds Python objects"),
        ({"edges": EDGES, "labels": np.full(120, -1)}, "no node has a label"),
        ({"edges": EDGES, "labels": LABELS + 0.5}, "must be numbers of classes"),
        ({"nodes": EDGES}, "this form of graph is not known"),
        (sparse("adj_", EDGES[:, 0], EDGES[:, 1], (60, 60)), "labels is of 120 nodes"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path, arrays, words):
    with pytest.raises(DataError, match=words) as error:
        build(tmp_path, **{"labels": LABELS, **arrays})
    assert "g.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_arrays_of_objects_that_are_not_needed_are_not_read(tmp_path):
    names = np.array(["a", "b"], object)
    data = build(tmp_path, edges=EDGES, labels=LABELS, class_names=names, idx_to_node=names)
    assert data.labels.class_names == ("0", "1")


def test_a_file_that_is_cut_off_or_damaged_is_one_clear_line(tmp_path):
    path = tmp_path / "g.npz"
    draw = np.random.default_rng(0)
    np.savez_compressed(path, edges=draw.integers(0, 120, (5000, 2)), labels=LABELS)
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 2] ^= 0xFF
    for broken in (content[:-50], content[: len(content) // 2], b"no archive", bytes(damaged)):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"g\.npz is not a readable \.npz file"):
            NpzGraphConfig(path=str(path)).build()


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_classes"),
    [("cora", 2_708, 7), ("musae_facebook", 22_470, 4), ("tolokers", 11_758, 2)],
)
def test_real_graphs_are_read(shared_data, tmp_path, name, num_nodes, num_classes):
    path = str(shared_data / "graph" / f"{name}.npz")
    data = NpzGraphConfig(path=path, cache=str(tmp_path)).build()
    assert data.graph.nodes["node"].num_nodes == num_nodes
    assert len(data.labels.class_names) == num_classes
