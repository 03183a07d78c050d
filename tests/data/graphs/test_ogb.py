"""Data sets of the Open Graph Benchmark are read from their folders as downloaded."""

import gzip

import numpy as np
import pytest

from outsize.data import OgbConfig
from outsize.errors import ConfigError, DataError


def put(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


@pytest.fixture
def arxiv(tmp_path):
    folder = tmp_path / "ogbn_arxiv"
    put(folder / "raw/num-node-list.csv.gz", 6)
    put(folder / "raw/num-edge-list.csv.gz", 4)
    put(folder / "raw/edge.csv.gz", "0,1", "2,1", "4,5", "0,1")
    put(folder / "raw/node-label.csv.gz", 4, 2, 4, 2, 4, 2)
    put(folder / "raw/node-feat.csv.gz", *["0.1,0.2"] * 6)
    put(folder / "split/time/train.csv.gz", 0, 1)
    put(folder / "split/time/valid.csv.gz", 3)
    put(folder / "split/time/test.csv.gz", 5, 4)
    return folder


@pytest.fixture
def mag(tmp_path):
    folder = tmp_path / "ogbn_mag"
    put(folder / "raw/num-node-dict.csv.gz", "author,field_of_study,institution,paper", "3,2,1,4")
    put(folder / "raw/nodetype-has-label.csv.gz", "author,paper", "False,True")
    relations = folder / "raw/relations"
    put(relations / "author___affiliated_with___institution/edge.csv.gz", "0,0", "2,0")
    put(relations / "author___writes___paper/edge.csv.gz", "0,0", "1,3", "2,3")
    put(relations / "author___writes___paper/num-edge-list.csv.gz", 3)
    put(relations / "paper___cites___paper/edge.csv.gz", "0,1", "2,3")
    put(relations / "paper___has_topic___field_of_study/edge.csv.gz", "3,1")
    put(folder / "raw/node-label/paper/node-label.csv.gz", 0, 7, 0, 7)
    for name, node in (("train", 0), ("valid", 1), ("test", 3)):
        put(folder / f"split/time/paper/{name}.csv.gz", node)
    put(folder / "split/time/nodetype-has-split.csv.gz", "author,paper", "False,True")
    return folder


def grouped(relation):
    return [part.tolist() for part in np.split(relation.sources, relation.starts[1:-1])]


def test_nodes_of_one_type_are_read(arxiv):
    data = OgbConfig(path=str(arxiv)).build()
    assert grouped(data.graph.relations["edge"]) == [[1], [0, 2], [1], [], [5], [4]]
    assert data.labels.class_names == ("2", "4")
    assert data.labels.classes.tolist() == [1, 0, 1, 0, 1, 0]
    assert {s: nodes.tolist() for s, nodes in data.labelled.items()} == {
        "train": [0, 1], "validation": [3], "test": [4, 5]
    }  # fmt: skip


def test_several_columns_of_labels_are_several_classes(arxiv):
    put(arxiv / "raw/node-label.csv.gz", *["0,1,1"] * 5, "1,,0")
    data = OgbConfig(path=str(arxiv)).build()
    assert data.labels.classes[[0, 5]].tolist() == [[0, 1, 1], [1, 0, 0]]


def test_a_label_may_be_missing(arxiv):
    put(arxiv / "raw/node-label.csv.gz", 4, 2, "nan", 2, "nan", 2)
    data = OgbConfig(path=str(arxiv)).build()
    assert data.labels.classes.tolist() == [1, 0, -1, 0, -1, 0]
    assert data.labelled["test"].tolist() == [5]


def test_several_node_types_are_read(mag):
    data = OgbConfig(path=str(mag)).build()
    assert {name: kind.num_nodes for name, kind in data.graph.nodes.items()} == {
        "author": 3, "field_of_study": 2, "institution": 1, "paper": 4
    }  # fmt: skip
    assert list(data.graph.relations) == [
        "affiliated_with", "rev_affiliated_with", "writes", "rev_writes", "cites", "has_topic",
        "rev_has_topic",
    ]  # fmt: skip
    assert grouped(data.graph.relations["writes"]) == [[0], [], [], [1, 2]]
    assert grouped(data.graph.relations["cites"]) == [[1], [0], [3], [2]]
    assert (data.labels.node_type, data.labels.class_names) == ("paper", ("0", "7"))
    assert data.labelled["validation"].tolist() == [1]


def test_relations_of_the_same_name_are_told_apart_by_their_types(mag):
    put(mag / "raw/relations/institution___writes___paper/edge.csv.gz", "0,0")
    names = list(OgbConfig(path=str(mag), directed=True).build().graph.relations)
    assert "author_writes_paper" in names
    assert "institution_writes_paper" in names


def test_relations_may_become_bags_of_the_labelled_nodes(mag):
    config = OgbConfig(path=str(mag), bags=("has_topic", "writes"))
    data = config.build()
    assert list(data.graph.nodes) == ["author", "institution", "paper"]
    assert list(data.graph.relations) == ["affiliated_with", "rev_affiliated_with", "cites"]
    bags = data.graph.nodes["paper"].attributes
    assert (bags["has_topic"].starts.tolist(), bags["has_topic"].num_ids) == ([0, 0, 0, 0, 1], 2)
    assert bags["has_topic"].values.tolist() == [1]
    assert (bags["writes"].starts.tolist(), bags["writes"].num_ids) == ([0, 1, 1, 1, 3], 3)
    assert bags["writes"].values.tolist() == [0, 1, 2]
    of_sources = OgbConfig(path=str(mag), bags=("affiliated_with",)).build().graph.nodes["author"]
    assert of_sources.attributes["affiliated_with"].starts.tolist() == [0, 1, 1, 2]
    for names, words in (
        (("cites",), "joins nodes of one type"),
        (("reads",), "bags names 'reads', but the relations are"),
    ):
        with pytest.raises(ConfigError, match=words):
            OgbConfig(path=str(mag), bags=names).build()


@pytest.mark.parametrize(
    ("file", "lines", "words"),
    [
        (
            "raw/edge.csv.gz",
            ["0,6"],
            "an edge has the target 6, but there are only the nodes 0 to 5",
        ),
        ("raw/edge.csv.gz", ["0,x"], "a node that is not a number"),
        ("raw/edge.csv.gz", ["0,1,2", "0,1"], "a wrong number of columns"),
        ("raw/node-label.csv.gz", [1, 2], "has 2 rows where 6 belong"),
        ("raw/node-label.csv.gz", ["a"] * 6, "a value is not a number"),
        ("split/time/test.csv.gz", [6], "it has the node 6, but there are 6 nodes"),
    ],
)
def test_files_that_do_not_fit_are_one_clear_line(arxiv, file, lines, words):
    put(arxiv / file, *lines)
    with pytest.raises(DataError, match=words) as error:
        OgbConfig(path=str(arxiv)).build()
    assert file in str(error.value)


def test_a_folder_that_is_not_whole_is_one_clear_line(arxiv, tmp_path):
    with pytest.raises(DataError, match="has no folder raw"):
        OgbConfig(path=str(tmp_path)).build()
    with pytest.raises(DataError, match="has no split 'random': set split to one of time"):
        OgbConfig(path=str(arxiv), split="random").build()
    whole = (arxiv / "raw/edge.csv.gz").read_bytes()
    (arxiv / "raw/edge.csv.gz").write_bytes(whole[:-9])
    with pytest.raises(DataError, match=r"edge\.csv\.gz cannot be read"):
        OgbConfig(path=str(arxiv)).build()
    (arxiv / "raw/edge.csv.gz").unlink()
    with pytest.raises(DataError, match=r"edge\.csv\.gz: no such file"):
        OgbConfig(path=str(arxiv)).build()
