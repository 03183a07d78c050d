"""Compiled draws and numbers of nodes equal the reference, whatever the threads."""

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import DataError
from outsize.kernels.neighbors import draws as module
from outsize.kernels.neighbors.draws import ALL, draw_by_numpy, draw_neighbors
from outsize.kernels.neighbors.found import FoundByDict, FoundByHash, found_nodes

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def compiled_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")


def make(degrees, seed=0, dtype=np.int64):
    """Starts and sources of targets with these degrees."""
    starts = np.array([0, *degrees], np.int64).cumsum()
    sources = np.random.default_rng(seed).integers(0, 2**31 - 1, starts[-1]).astype(dtype)
    return starts, sources


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype == np.int64
        np.testing.assert_array_equal(ours, theirs)


@given(
    data=st.data(),
    degrees=st.lists(st.sampled_from([0, 1, 2, 9, 10, 11, 70, 300]), min_size=1, max_size=10),
    fan_out=st.sampled_from([ALL, 1, 2, 10, 64, 65, 128, 299]),
    seed=st.integers(0, 2**63 - 1),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_draws_equal_the_reference_bit_for_bit(data, degrees, fan_out, seed, dtype):
    starts, sources = make(degrees, dtype=dtype)
    asked = data.draw(st.lists(st.integers(0, len(degrees) - 1), max_size=12))
    nodes = np.array(asked, np.int64)
    expected = draw_by_numpy(starts, sources, nodes, fan_out, seed)
    assert_equal(draw_neighbors(starts, sources, nodes, fan_out, seed), expected)


def test_degrees_beyond_32_bits_are_drawn_from_without_reading_the_rest(tmp_path):
    num_edges = 2**33
    path = tmp_path / "sources"
    with path.open("wb") as file:  # a file with holes: its 32 GB take no room
        file.truncate(4 * num_edges)
        file.seek(4 * (num_edges - 1))
        file.write(np.int32(7).tobytes())
    sources = np.memmap(path, np.int32, "r")
    starts = np.array([0, 1, num_edges - 1, num_edges], np.int64)
    nodes = np.array([2, 1, 0])
    tracemalloc.start()
    found = draw_neighbors(starts, sources, nodes, 40, 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found[0].tolist() == [0, 1, 41, 42]
    assert found[1].tolist() == [7] + [0] * 41
    assert peak < 100_000
    assert_equal(found, draw_by_numpy(starts, sources, nodes, 40, 3))


def test_read_only_and_strided_arrays_are_read(tmp_path):
    starts, sources = make([5, 0, 30, 12], dtype=np.int32)
    nodes, expected = np.array([3, 2, 1]), draw_by_numpy(starts, sources, np.array([3, 2, 1]), 4, 9)
    for name, values in (("starts", starts), ("sources", sources), ("nodes", nodes)):
        np.save(tmp_path / f"{name}.npy", values)
    mapped = [np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("starts", "sources", "nodes")]
    assert_equal(draw_neighbors(*mapped, 4, 9), expected)
    strided = [np.repeat(values, 2)[::2] for values in (starts, sources, nodes)]
    assert_equal(draw_neighbors(*strided, 4, 9), expected)
    assert_equal(draw_neighbors(starts, sources.astype(np.uint32), nodes, 4, 9), expected)


@pytest.mark.parametrize("fan_out", [3, 70])
def test_draws_are_uniform_over_nodes_and_over_seeds(fan_out):
    degree, num = 90, 20_000
    starts = np.arange(num + 1) * degree
    sources = np.tile(np.arange(degree, dtype=np.int32), num)
    one = np.concatenate(
        [draw_neighbors(starts, sources, np.array([5]), fan_out, seed)[1] for seed in range(2000)]
    )
    many = draw_neighbors(starts, sources, np.arange(num), fan_out, 1)[1]
    for drawn in (one, many):
        share = np.bincount(drawn, minlength=degree) / (len(drawn) / fan_out)
        expected = fan_out / degree
        spread = (expected * (1 - expected) * fan_out / len(drawn)) ** 0.5
        assert abs(share - expected).max() < 5 * spread
    pairs = many.reshape(num, fan_out)
    together = ((pairs == 3).any(1) & (pairs == 80).any(1)).mean()
    expected = fan_out * (fan_out - 1) / degree / (degree - 1)
    assert abs(together - expected) < 5 * (expected * (1 - expected) / num) ** 0.5


@pytest.mark.parametrize("fan_out", [ALL, 3, 100])
def test_draws_do_not_depend_on_the_number_of_threads(monkeypatch, fan_out):
    draw = np.random.default_rng(0)
    starts, sources = make((draw.random(300) ** 8 * 2000).astype(int).tolist())
    nodes = draw.integers(0, 300, 200)
    expected = draw_by_numpy(starts, sources, nodes, fan_out, 5)
    for parts in (1, 2, 3, 16):
        monkeypatch.setattr(module, "num_parts", lambda *_, parts=parts: parts)
        assert_equal(draw_neighbors(starts, sources, nodes, fan_out, 5), expected)


@pytest.mark.parametrize("kernels", ["numba", "torch"])
def test_any_fan_out_beyond_all_degrees_takes_all_edges(monkeypatch, kernels):
    monkeypatch.setenv("OUTSIZE_KERNELS", kernels)
    starts, sources = make([100, 0, 300])
    nodes = np.array([2, 1, 0])
    expected = draw_neighbors(starts, sources, nodes, ALL, 0)
    for fan_out in (300, 10**12, 2**70):
        assert_equal(draw_neighbors(starts, sources, nodes, fan_out, 0), expected)
    empty = np.zeros(4, np.int64), np.zeros(0, np.int32)
    assert_equal(draw_neighbors(*empty, nodes, 5, 0), (empty[0], np.zeros(0, np.int64)))


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@pytest.mark.parametrize("node", [-1, 3, 2**40])
def test_a_node_that_is_not_in_the_graph_is_refused(monkeypatch, kernels, node):
    monkeypatch.setenv("OUTSIZE_KERNELS", kernels)
    starts, sources = make([1, 2, 3])
    with pytest.raises(
        DataError, match=f"node {node} is not in the graph, whose targets are 0 … 2"
    ):
        draw_neighbors(starts, sources, np.array([1, node]), 2, 0)


@pytest.mark.parametrize("starts", [[0, 2, 1, 3], [0, 1, 9, 3], [-1, 0, 1, 3]])
def test_starts_that_are_no_ranges_of_edges_are_refused(starts):
    with pytest.raises(DataError, match=r"the edges of node \d are out of range"):
        draw_neighbors(np.array(starts), np.arange(3), np.arange(3), 5, 0)


IDS = st.lists(st.integers(0, 40) | st.integers(0, 2**63 - 1), max_size=60)


@given(lists=st.lists(IDS | st.just([*range(5000)]), max_size=4))
def test_nodes_are_numbered_in_the_order_they_are_found(lists):
    ours, theirs = found_nodes("node", 2**63 - 1, compiled=True), FoundByDict()
    assert isinstance(ours, FoundByHash)
    for ids in lists:
        expected = theirs.add(np.array(ids, np.int64))
        np.testing.assert_array_equal(ours.add(np.array(ids, np.int64)), expected)
        assert len(ours) == len(theirs)
        np.testing.assert_array_equal(ours.since(3), theirs.since(3))
    ours.release()


def test_ids_that_share_their_lower_half_are_different_nodes():
    ids = np.array([5, 5 + 2**32, 5 + 2**40, 5, 5 + 2**40])
    assert found_nodes("node", 2**41, compiled=True).add(ids).tolist() == [0, 1, 2, 0, 2]


def test_a_table_is_reused_empty_and_only_while_it_fits():
    def use(num):
        found = found_nodes("reused", 10**6, compiled=True)
        assert found.add(np.arange(num)).tolist() == list(range(num))
        entries = found._entries
        found.release()
        return entries

    large = use(50_000)
    assert len(large) < 8 * 50_000
    assert use(40_000) is large
    assert not large.any()
    assert use(10) is large  # taken, then found too large
    assert len(use(10)) < len(large)


def test_threads_number_nodes_at_once():
    draw = np.random.default_rng(0)
    lists = [draw.integers(0, 3000, 5000) for _ in range(4)]
    wrong = []

    def work(ids):
        for _ in range(5):
            found = found_nodes("node", 3000, compiled=True)
            if not np.array_equal(found.add(ids), FoundByDict().add(ids)):
                wrong.append(ids)
            found.release()

    threads = [threading.Thread(target=work, args=(ids,)) for ids in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
