"""The Amazon product graph in GraphSAINT's form: several classes per node, and words."""

import json

import numpy as np
import pytest

from outsize.data import AmazonConfig
from outsize.errors import DataError


def save_matrix(path, rows, shape, form=b"csr"):
    """A sparse matrix in the layout of scipy's `save_npz`."""
    starts = np.cumsum([0, *map(len, rows)])
    values = np.concatenate([*map(np.array, rows)]).astype(np.int32)
    np.savez_compressed(
        path, indices=values, indptr=starts, format=np.array(form), shape=np.array(shape),
        data=np.ones(len(values), bool),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    save_matrix(tmp_path / "adj_full.npz", [[1, 3], [0], [], [0]], (4, 4))
    (tmp_path / "class_map.json").write_text(
        json.dumps({"0": [1, 0], "1": [1, 1], "2": [0, 0], "3": [0, 1]})
    )
    (tmp_path / "role.json").write_text(json.dumps({"tr": [3, 0], "va": [1], "te": [2]}))
    return tmp_path


def test_products_are_read(folder):
    data = AmazonConfig(path=str(folder)).build()
    relation = data.graph.relations["edge"]
    assert [p.tolist() for p in np.split(relation.sources, relation.starts[1:-1])] == [
        [1, 3], [0], [], [0]
    ]  # fmt: skip
    assert data.labels.classes.tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]
    assert {s: nodes.tolist() for s, nodes in data.labelled.items()} == {
        "train": [0, 3], "validation": [1], "test": [2]
    }  # fmt: skip


def test_words_are_bags(folder):
    save_matrix(folder / "words.npz", [[4, 2], [], [0], [4]], (4, 6))
    data = AmazonConfig(path=str(folder), words="words.npz").build()
    words = data.graph.nodes["node"].attributes["words"]
    assert words.num_ids == 6
    assert (words.starts.tolist(), words.values.tolist()) == ([0, 2, 2, 3, 4], [2, 4, 0, 4])


def test_classes_may_be_numbers(folder):
    (folder / "class_map.json").write_text(json.dumps({"0": 2, "1": 2, "2": 0, "3": 0}))
    assert AmazonConfig(path=str(folder)).build().labels.classes.tolist() == [1, 1, 0, 0]


def test_files_that_do_not_fit_are_one_clear_line(folder):
    def refused(words):
        with pytest.raises(DataError, match=words):
            AmazonConfig(path=str(folder)).build()

    (folder / "role.json").write_text('{"tr": [0], "va": [1], "te": [4]}')
    refused("'te' has the node 4, but there are 4 nodes")
    (folder / "role.json").write_text('{"tr": [0], "va": [], "te": [2]}')
    refused("no labelled node is in the validation split")
    (folder / "role.json").write_text('{"tr": [0]}')
    refused("'va' must be a list of nodes")
    (folder / "class_map.json").write_text('{"7": [0, 1]}')
    refused("'7' is not one of 4 nodes")
    (folder / "class_map.json").write_text('{"0": 0, "1": 1, "2": 0}')
    (folder / "role.json").write_text('{"tr": [0], "va": [1], "te": [2]}')
    save_matrix(folder / "adj_full.npz", [[1, 3], [0], [], [0]], (4, 4), b"bsr")
    refused("must be csr or coo, but is bsr")
    save_matrix(folder / "adj_full.npz", [[1, 3], [0], [], [0]], (5, 5))
    refused("indptr does not fit 5 rows of 4 values")
    save_matrix(folder / "adj_full.npz", [[1, 9], [0], [], [0]], (4, 4))
    refused("an edge has the target 9")
