"""Graphs are read from lists of edges and nodes, whatever the ids."""

import gzip
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outsize.data import DATA, EdgesConfig, LinkSplit
from outsize.data.encoding.splits import ColumnSplit, HashSplit, TimeSplit
from outsize.data.graphs.node_files import NodeFile
from outsize.data.graphs.relation_file import RelationFile
from outsize.errors import ConfigError, DataError
from outsize.training.strict_toml import decode, encode


def write(path, **columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]  # noqa: B905
        text = "\n".join(lines) + "\n"
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
    return (str(path),)


def neighbors(data, relation="edge", by_name=True):
    """Target → the list of its sources, by their raw ids."""
    edges = data.graph.relations[relation]
    names = {}
    for kind in (edges.source, edges.target):
        nodes = data.graph.nodes[kind]
        raw = list(range(nodes.num_nodes)) if nodes.names is None else nodes.names.to_pylist()
        names[kind] = raw
    return {
        name: [names[edges.source][i] for i in edges.sources[edges.starts[t] : edges.starts[t + 1]]]
        for t, name in enumerate(names[edges.target])
    }


@pytest.mark.parametrize("form", ["parquet", "csv", "csv.gz"])
@pytest.mark.parametrize(
    "ids",
    [
        [0, 1, 2, 3],
        [-5, 7, 900, 1 << 62],
        ["a", "ü", "c d", "node 4"],
        ["007", "7", "8", "9"],  # as text they differ
        [7, "seven", 8, 9],
    ],
)
def test_ids_of_any_kind_become_numbers(tmp_path, form, ids):
    a, b, c, d = ids if form != "parquet" or len({*map(type, ids)}) == 1 else map(str, ids)
    edges = write(tmp_path / f"edges.{form}", source=[a, b, c, c], target=[b, c, a, d])
    data = EdgesConfig(path=edges).build()
    found = {str(k): sorted(map(str, v)) for k, v in neighbors(data).items()}
    a, b, c, d = map(str, (a, b, c, d))
    assert found == {a: sorted([b, c]), b: sorted([a, c]), c: sorted([a, b, d]), d: [c]}
    assert (data.graph.nodes["node"].names is None) == (ids[0] == 0)


def test_nodes_are_numbered_as_in_their_file(tmp_path):
    nodes = write(tmp_path / "nodes.csv", id=["x", "y", "z", "alone"], label=["a", "b", "", "a"])
    edges = write(tmp_path / "edges.parquet", source=["z", "y"], target=["x", "x"])
    config = EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label"), split=HashSplit(seed=5))
    with pytest.raises(DataError, match="no labelled node is in the"):
        config.build()
    data = EdgesConfig(path=edges, nodes=NodeFile(nodes)).build()
    assert data.graph.nodes["node"].names.to_pylist() == ["x", "y", "z", "alone"]
    assert neighbors(data) == {"x": ["y", "z"], "y": ["x"], "z": ["x"], "alone": []}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("header", [False, True])
def test_comments_at_the_top_are_skipped(tmp_path, packed, header):
    lines = ["# a graph", "#source\ttarget", *(["source\ttarget"] if header else [])]
    text = "\n".join([*lines, "#a\tb", "b\tc", ""])
    if not header:  # then the first edge would be taken for a comment
        text = text.replace("#a", "a")
    path = tmp_path / f"edges.txt{'.gz' if packed else ''}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    columns = () if header else ("source", "target")
    config = EdgesConfig(path=(str(path),), columns=columns, comment="#")
    a = "#a" if header else "a"
    assert neighbors(config.build()) == {a: ["b"], "b": [a, "c"], "c": ["b"]}


def test_lines_are_counted_from_the_top_of_the_file_with_comments(tmp_path):
    (tmp_path / "e.csv").write_text("# a graph\nsource,target\na,b\na,y\n")
    nodes = write(tmp_path / "n.csv", id=["a", "b"])
    config = EdgesConfig(path=(str(tmp_path / "e.csv"),), nodes=NodeFile(nodes), comment="#")
    with pytest.raises(DataError, match=r"e\.csv line 4: target 'y' is not in"):
        config.build()


def test_duplicates_and_self_loops_are_merged_and_dropped_unless_kept(tmp_path):
    edges = write(tmp_path / "e.csv", source=[0, 0, 1, 2, 2], target=[1, 1, 0, 2, 0])

    def sources(**settings):
        relation = EdgesConfig(path=edges, **settings).build().graph.relations["edge"]
        return np.split(relation.sources, relation.starts[1:-1])

    def check(found, wanted):
        assert [part.tolist() for part in found] == wanted

    check(sources(), [[1, 2], [0], [0]])
    check(sources(self_loops="keep"), [[1, 2], [0], [0, 2]])
    check(sources(duplicates="keep"), [[1, 1, 1, 2], [0, 0, 0], [0]])
    check(sources(directed=True), [[1, 2], [0], []])
    check(sources(directed=True, duplicates="keep", self_loops="keep"), [[1, 2], [0, 0], [2]])


def labelled_nodes(tmp_path, count=200, **columns):
    draw = np.random.default_rng(0)
    edges = write(
        tmp_path / "edges.csv",
        source=draw.integers(0, count, 500),
        target=draw.integers(0, count, 500),
    )
    columns = {"id": list(range(count)), "label": [f"c{i % 3}" for i in range(count)], **columns}
    return edges, write(tmp_path / "nodes.parquet", **columns)


def test_labels_may_be_missing_and_small_classes_are_unlabelled_if_asked(tmp_path):
    labels = [None if i % 2 else f"c{i % 3}" for i in range(199)] + ["only"]
    edges, nodes = labelled_nodes(tmp_path, label=labels)
    every = EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label")).build()
    assert every.labels.class_names == ("c0", "c1", "c2", "only")
    assert every.labels.classes[:4].tolist() == [0, -1, 2, -1]
    assert sum(map(len, every.labelled.values())) == 101
    large = NodeFile(nodes, label="label", min_class_size=2)
    data = EdgesConfig(path=edges, nodes=large).build()
    assert data.labels.class_names == ("c0", "c1", "c2")
    assert data.labels.classes[199] == -1
    assert sum(map(len, data.labelled.values())) == 100
    with pytest.raises(DataError, match="no class has min_class_size = 999"):
        EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label", min_class_size=999)).build()


def test_a_node_may_have_several_classes(tmp_path):
    labels = ["10;9" if i % 2 else "9" for i in range(198)] + ["", "9; 10"]
    edges, nodes = labelled_nodes(tmp_path, label=labels)
    file = NodeFile(nodes, label="label", label_separator=";")
    data = EdgesConfig(path=edges, nodes=file).build()
    assert data.labels.is_multi_label
    assert data.labels.class_names == ("9", "10")  # as numbers
    assert data.labels.classes[[0, 1, 198, 199]].tolist() == [[1, 0], [1, 1], [0, 0], [1, 1]]
    assert sum(map(len, data.labelled.values())) == 199


def test_nodes_are_split_by_a_column_by_time_or_by_hash(tmp_path):
    words = ["train", "valid", "test", "unused"]
    edges, nodes = labelled_nodes(
        tmp_path, part=[words[i % 4] for i in range(200)], year=[2000 + i // 20 for i in range(200)]
    )
    file = NodeFile(nodes, label="label")
    column = ColumnSplit("part", validation=("valid",))
    by_column = EdgesConfig(path=edges, nodes=file, split=column).build()
    assert by_column.labelled["test"].tolist() == list(range(2, 200, 4))
    time = TimeSplit("year", validation_from=2008, test_from=2009)
    by_time = EdgesConfig(path=edges, nodes=file, split=time).build()
    assert by_time.labelled["validation"].tolist() == list(range(160, 180))
    by_hash = EdgesConfig(path=edges, nodes=file).build()
    assert sorted(np.concatenate(list(by_hash.labelled.values()))) == list(range(200))
    assert len(by_hash.labelled["train"]) > 140


@pytest.mark.parametrize("as_list", [False, True])
def test_attributes_become_bags(tmp_path, as_list):
    tags = [["b", "a"], [], ["a"], None]
    column = tags if as_list else [None if t is None else ", ".join(t) for t in tags]
    nodes = write(tmp_path / "n.parquet", id=[0, 1, 2, 3], tag=column, owner=["o", None, "p", "o"])
    edges = write(tmp_path / "e.csv", source=[0], target=[1])
    file = NodeFile(nodes, attributes=("owner",), multi_valued=("tag",), separator=",")
    found = EdgesConfig(path=edges, nodes=file).build().graph.nodes["node"].attributes
    bags = found["tag"]
    assert bags.starts.tolist() == [0, 2, 2, 3, 3]
    assert bags.names.take(pa.array(bags.values)).to_pylist() == ["b", "a", "a"]
    assert found["owner"].starts.tolist() == [0, 1, 1, 2, 3]
    owners = found["owner"]
    assert owners.names.take(pa.array(owners.values)).to_pylist() == ["o", "p", "o"]
    assert (bags.num_ids, owners.num_ids) == (2, 2)


def test_relations_of_one_file_are_told_apart_by_a_column(tmp_path):
    edges = write(
        tmp_path / "e.parquet", source=[0, 1, 0, 2], target=[1, 2, 2, 3], kind=[10, 9, 10, None]
    )
    config = EdgesConfig(path=edges, relation="kind", directed=True, max_bad_rows=0.5)
    data = config.build()
    assert list(data.graph.relations) == ["9", "10"]
    assert neighbors(data, "9") == {0: [], 1: [], 2: [1], 3: []}
    assert neighbors(data, "10") == {0: [], 1: [0], 2: [0], 3: []}


def test_names_from_data_become_usable_as_names_of_tables(tmp_path):
    kinds = ["a.b", "c d", "a.b", "-x"]
    edges = write(tmp_path / "e.parquet", source=[0, 1, 2, 3], target=[1, 2, 3, 0], kind=kinds)
    nodes = NodeFile(write(tmp_path / "n.csv", id=[0, 1, 2, 3], **{"own.er": [1, 1, 2, 3]}))
    config = EdgesConfig(path=edges, relation="kind", nodes=replace(nodes, attributes=("own.er",)))
    data = config.build()
    assert sorted(data.graph.relations) == ["_-x", "a_b", "c_d"]
    assert list(data.graph.nodes["node"].attributes) == ["own_er"]
    kinds[1] = "a b"
    edges = write(tmp_path / "e.parquet", source=[0, 1, 2, 3], target=[1, 2, 3, 0], kind=kinds)
    with pytest.raises(DataError, match="two values of 'kind' would name the same relation"):
        EdgesConfig(path=edges, relation="kind").build()
    with pytest.raises(ConfigError, match="features of the same name"):
        NodeFile(("n",), attributes=("a.b", "a_b"))
    with pytest.raises(ConfigError, match=r"'a\.b' cannot name a relation"):
        EdgesConfig(relations={"a.b": RelationFile(("e",), "x", "y")})


@pytest.fixture
def papers(tmp_path):
    """A configuration with papers, which have a file, and authors, which have none."""
    write(tmp_path / "papers.csv", id=["p1", "p2", "p3"], venue=["x", "y", "x"])
    write(tmp_path / "writes.parquet", who=[70, 50, 50], what=["p1", "p3", "p1"])
    write(tmp_path / "cites.csv", source=["p1", "p2"], target=["p2", "p3"])
    return {
        "node_types": {"paper": {"path": [f"{tmp_path}/papers.csv"]}},
        "relations": {
            "writes": {
                "path": [f"{tmp_path}/writes.parquet"], "source": "author", "target": "paper",
                "source_column": "who", "target_column": "what",
            },
            "cites": {
                "path": [f"{tmp_path}/cites.csv"], "source": "paper", "target": "paper",
                "source_column": "source", "target_column": "target",
            },
        },
    }  # fmt: skip


def test_several_node_types_have_relations_in_both_directions(papers):
    config = decode(EdgesConfig, papers, "run.toml")
    assert decode(EdgesConfig, encode(config), "run.toml") == config
    data = config.build()
    assert list(data.graph.nodes) == ["author", "paper"]
    assert list(data.graph.relations) == ["writes", "rev_writes", "cites"]
    assert data.graph.relations["rev_writes"].source == "paper"
    assert neighbors(data, "writes") == {"p1": [50, 70], "p2": [], "p3": [50]}
    assert neighbors(data, "rev_writes") == {50: ["p1", "p3"], 70: ["p1"]}
    assert neighbors(data, "cites") == {"p1": ["p2"], "p2": ["p1", "p3"], "p3": ["p2"]}
    directed = decode(EdgesConfig, {**papers, "directed": True}, "run.toml").build()
    assert list(directed.graph.relations) == ["writes", "cites"]


def test_links_between_two_types_are_held_out_in_both_directions(tmp_path):
    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, 40, (400, 2)), axis=0)
    path = write(tmp_path / "likes.csv", user=pairs[:, 0], item=pairs[:, 1])
    config = EdgesConfig(
        relations={"likes": RelationFile(path, "user", "item")}, links=LinkSplit(test=0.3)
    )
    data = config.build()
    sets = {split: {*zip(*links.tolist(), strict=True)} for split, links in data.links.items()}
    assert {*zip(*pairs.T.tolist(), strict=True)} == set().union(*sets.values())
    assert sum(map(len, sets.values())) == len(pairs)
    assert data.link_relation == "likes"
    there = {(s, t) for t, found in neighbors(data, "likes").items() for s in found}
    back = {(t, s) for t, found in neighbors(data, "rev_likes").items() for s in found}
    assert there == back == sets["train"]


def test_an_edge_and_its_copies_and_its_reverse_are_in_one_split(tmp_path):
    draw = np.random.default_rng(1)
    pairs = draw.integers(0, 30, (300, 2))
    both = np.concatenate((pairs, pairs[:50, ::-1], pairs[:50]))
    path = write(tmp_path / "e.csv", source=both[:, 0], target=both[:, 1])
    data = EdgesConfig(path=path, links=LinkSplit(validation=0.2, test=0.2)).build()
    seen = [frozenset(pair) for links in data.links.values() for pair in links.T.tolist()]
    assert len(seen) == len({*seen}) == len({frozenset(p) for p in pairs.tolist() if p[0] != p[1]})
    graph = {frozenset((s, t)) for t, found in neighbors(data).items() for s in found}
    assert graph == {frozenset(pair) for pair in data.links["train"].T.tolist()}
    turned = (data.links["train"][0] > data.links["train"][1]).mean()
    assert 0.3 < turned < 0.7


def test_a_graph_is_read_from_its_folder_until_its_source_changes(tmp_path, capsys):
    edges, nodes = labelled_nodes(tmp_path)
    config = EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label"), links=LinkSplit())
    first = config.build()
    (folder,) = (p for p in (tmp_path / ".outsize-cache").iterdir() if p.is_dir())
    manifest = folder / "manifest.json"
    written = manifest.stat().st_mtime_ns
    again = config.build()
    assert manifest.stat().st_mtime_ns == written
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(first.links["train"], again.links["train"])
    sources = folder / "relation-0-sources.bin"
    content = bytearray(sources.read_bytes())
    content[5] ^= 1
    sources.write_bytes(content)
    assert config.build().fingerprint == first.fingerprint  # damage is found, and mended
    assert "damaged" in capsys.readouterr().err
    write(tmp_path / "edges.csv", source=[0, 1, 5] * 30, target=[2, 3, 9] * 30)
    changed = EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label")).build()
    assert changed.fingerprint != first.fingerprint
    assert not list((tmp_path / ".outsize-cache").glob("*.partial"))


def test_a_graph_is_built_in_memory_where_no_folder_can_be_written(tmp_path, monkeypatch, capsys):
    edges, nodes = labelled_nodes(tmp_path)
    config = EdgesConfig(path=edges, nodes=NodeFile(nodes, label="label"), links=LinkSplit())
    stored = EdgesConfig(**{**vars(config), "cache": str(tmp_path / "elsewhere")}).build()
    monkeypatch.setattr("os.access", lambda *_: False)
    data = config.build()
    assert "cannot be written" in capsys.readouterr().err
    assert not (tmp_path / ".outsize-cache").exists()
    assert data.fingerprint == stored.fingerprint
    assert np.array_equal(data.links["test"], stored.links["test"])


def test_ids_that_turn_out_to_be_text_are_read_again(tmp_path):
    nodes = {"a": NodeFile(write(tmp_path / "n.csv", id=[30, 20, 10]))}
    first = write(tmp_path / "first.csv", source=[30, 20], target=[20, 10])
    second = write(tmp_path / "second.csv", source=["x", "10"], target=[20, 30])
    ends = {"source_column": "source", "target_column": "target"}
    relations = {
        "first": RelationFile(first, "a", "a", **ends),
        "second": RelationFile(second, "a", "a", **ends),
    }
    config = EdgesConfig(
        relations=relations, node_types=nodes, unknown="skip", directed=True, duplicates="keep"
    )
    data = config.build()
    assert neighbors(data, "first") == {"30": [], "20": ["30"], "10": ["20"]}
    assert neighbors(data, "second") == {"30": ["10"], "20": [], "10": []}


def test_an_edge_to_a_node_without_a_row_is_an_error_or_skipped(tmp_path, capsys):
    nodes = write(tmp_path / "n.csv", id=["a", "b"])
    edges = write(tmp_path / "e.csv", source=["a", "a", "x"], target=["b", "y", "b"])
    with pytest.raises(DataError, match=r"e\.csv line 3: target 'y' is not in .*n\.csv.*'skip'"):
        EdgesConfig(path=edges, nodes=NodeFile(nodes)).build()
    data = EdgesConfig(path=edges, nodes=NodeFile(nodes), unknown="skip").build()
    assert neighbors(data) == {"a": ["b"], "b": ["a"]}
    assert "skipped 2 edges" in capsys.readouterr().err


@pytest.mark.parametrize("ids", [["a", "b", "a"], [5, 3, 5]])
def test_an_id_in_the_node_file_twice_is_an_error(tmp_path, ids):
    nodes, edges = (
        write(tmp_path / "n.csv", id=ids),
        write(tmp_path / "e.csv", source=[], target=[]),
    )
    with pytest.raises(DataError, match=f"the id {ids[0]!r} is there twice, as node 1 and node 3"):
        EdgesConfig(path=edges, nodes=NodeFile(nodes)).build()


def test_files_that_cannot_be_used_are_one_clear_line(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    header = write(tmp_path / "header.csv", source=[], target=[])
    good = write(tmp_path / "good.csv", source=[1, 2], target=[2, 3])
    cut = tmp_path / "cut.csv.gz"
    draw = np.random.default_rng(0).integers(0, 1 << 40, (2, 500))
    write(cut, source=draw[0], target=draw[1])
    cut.write_bytes(cut.read_bytes()[:-100])
    half = write(tmp_path / "half.csv", source=[1, ""], target=["", 3])

    def message(**settings):
        with pytest.raises(DataError) as error:
            EdgesConfig(**settings).build()
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "is empty" in message(path=(str(tmp_path / "empty.csv"),))
    assert "there is no edge" in message(path=header)
    assert "no such file" in message(path=(str(tmp_path / "no.csv"),))
    assert "has no column 'from'" in message(path=good, source="from")
    assert "cut.csv.gz cannot be read" in message(path=(str(cut),))
    assert "2 of 2 rows are malformed" in message(path=half)
    assert "there is no node" in message(
        path=good, nodes=NodeFile(write(tmp_path / "n.csv", id=[]))
    )
    assert not list(tmp_path.glob(".outsize-cache/*.partial"))


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="either as path, or as a section"):
        EdgesConfig()
    writes = {"writes": RelationFile(("e",), "a", "b")}
    with pytest.raises(ConfigError, match=r"node_types\.TYPE"):
        EdgesConfig(relations=writes, nodes=NodeFile(("n",)))
    with pytest.raises(ConfigError, match="no relation has nodes of type 'c'"):
        EdgesConfig(relations=writes, node_types={"c": NodeFile(("n",))})
    file = NodeFile(("n",), label="l")
    with pytest.raises(ConfigError, match="only one node type can have a label"):
        EdgesConfig(relations=writes, node_types={"a": file, "b": file})
    with pytest.raises(ConfigError, match="both in the column 'a'"):
        RelationFile(("e",), "a", "a")
    with pytest.raises(ConfigError, match="used twice"):
        NodeFile(("n",), label="id")


def test_links_of_a_relation_that_there_is_not_are_refused(tmp_path):
    edges = write(tmp_path / "e.csv", source=[1, 2], target=[2, 3])
    with pytest.raises(ConfigError, match=r"links\.relation must be one of edge, but got 'x'"):
        EdgesConfig(path=edges, links=LinkSplit("x")).build()
    with pytest.raises(DataError, match="no edge is in the"):
        EdgesConfig(path=edges, links=LinkSplit()).build()


def test_real_package_dependencies_are_read(shared_data, tmp_path):
    folder = shared_data / "graph"
    nodes = NodeFile(
        (str(folder / "debian_trixie_nodes.parquet"),), label="section",
        attributes=("maintainer",), multi_valued=("tags",), separator=",",
    )  # fmt: skip
    config = EdgesConfig(
        path=(str(folder / "debian_trixie_edges.parquet"),), source="src", target="dst",
        relation="type", nodes=nodes, cache=str(tmp_path),
    )  # fmt: skip
    data = config.build()
    assert data.graph.nodes["node"].num_nodes == 68_820
    assert list(data.graph.relations) == ["0", "1", "2", "3", "4"]
    assert len(data.labels.class_names) == 58
    assert data.graph.nodes["node"].attributes["maintainer"].num_ids == 1_952


def test_real_papers_and_authors_are_read_and_split_by_year(shared_data, tmp_path):
    folder = shared_data / "graph"
    tree = {
        "cache": str(tmp_path),
        "split": {"kind": "time", "column": "year", "validation_from": 2022, "test_from": 2024},
        "node_types": {
            "paper": {
                "path": [f"{folder}/acl_papers.parquet"], "label": "venue", "min_class_size": 500,
            }
        },
        "relations": {
            "writes": {
                "path": [f"{folder}/acl_paper_author_edges.parquet"], "source": "author",
                "target": "paper",
            }
        },
    }  # fmt: skip
    data = decode(DATA["edges"], tree, "run.toml").build()
    assert {name: kind.num_nodes for name, kind in data.graph.nodes.items()} == {
        "author": 116_274, "paper": 110_486
    }  # fmt: skip
    assert len(data.labels.class_names) == 32
    assert data.labels.node_type == "paper"
    assert (np.bincount(data.labels.classes[data.labels.classes >= 0]) >= 500).all()
