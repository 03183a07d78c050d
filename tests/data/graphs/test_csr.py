"""Edges in chunks are grouped by target, by any rules, in memory or in a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.data.graphs.arrays import ArrayFiles, map_array
from outsize.data.graphs.csr import EdgeRules, group_edges
from outsize.errors import DataError

EDGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40)
RULES = st.builds(
    EdgeRules, st.booleans(), st.sampled_from(["merge", "keep"]), st.sampled_from(["drop", "keep"])
)


def chunks_of(edges, size=7):
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    return lambda: ((p[:, 0], p[:, 1]) for p in np.split(pairs, range(size, len(pairs), size)))


def wanted(edges, rules, same_type):
    """What the rules say, edge by edge."""
    found = []
    for source, target in edges:
        if source == target and same_type:
            found += [(target, source)] if rules.self_loops == "keep" else []
            continue
        found.append((target, source))
        if same_type and rules.undirected:
            found.append((source, target))
    return sorted(set(found) if rules.duplicates == "merge" else found)


@given(EDGES, RULES, st.booleans())
def test_edges_are_those_of_the_rules(edges, rules, same_type):
    grouped = group_edges(chunks_of(edges), 6, 6, rules, same_type=same_type)
    targets = np.repeat(np.arange(6), np.diff(grouped.starts)).tolist()
    found = list(zip(targets, grouped.sources.tolist(), strict=True))
    assert found == wanted(edges, rules, same_type)
    assert grouped.starts.dtype == np.int64
    assert grouped.sources.dtype == np.int32


def test_edges_in_a_file_are_those_in_memory(tmp_path):
    edges = np.random.default_rng(0).integers(0, 50, (2_000, 2))
    files = ArrayFiles(tmp_path)
    rules = EdgeRules()
    kept = group_edges(chunks_of(edges), 50, 50, rules)
    grouped = group_edges(
        chunks_of(edges), 50, 50, rules, new_array=lambda n, dtype: files.new("s.bin", n, dtype)
    )
    files.save("s.bin", grouped.sources)
    assert (tmp_path / "s.bin").stat().st_size == kept.sources.nbytes  # merged edges are cut off
    stored = map_array(tmp_path / "s.bin", "int32", [len(kept.sources)])
    assert np.array_equal(stored, kept.sources)
    before = (tmp_path / "s.bin").read_bytes()
    stored[:] = 0  # a private copy
    assert (tmp_path / "s.bin").read_bytes() == before


def test_many_nodes_have_wide_ids():
    grouped = group_edges(
        chunks_of([(1 << 40, 0), (3, 0)]), 1 << 41, 2, EdgeRules(), same_type=False
    )
    assert grouped.sources.tolist() == [3, 1 << 40]


@pytest.mark.parametrize(("edge", "role"), [((6, 0), "source 6"), ((0, 6), "target 6")])
def test_ids_beyond_the_nodes_are_refused(edge, role):
    with pytest.raises(DataError, match=f"the {role}, but there are only the nodes 0 to 5"):
        group_edges(chunks_of([edge]), 6, 6, EdgeRules())
    with pytest.raises(DataError, match="nodes none"):
        group_edges(chunks_of([(0, 0)]), 0, 0, EdgeRules())
