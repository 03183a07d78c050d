import importlib.util

import pytest

from outsize.bench import run_benchmark


def test_the_quick_form_times_k_means_beside_its_peers(tmp_path):
    pytest.importorskip("numba")
    results = run_benchmark("kmeans", tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    peers = {"torch"} | ({"faiss"} if importlib.util.find_spec("faiss") else set())
    assert set(row["search"]) == {"numba"} | peers
    for name in peers:
        expected = row["search"][name]["median_ms"] / row["search"]["numba"]["median_ms"]
        assert results[f"speedup_vs_{name}"] == pytest.approx(expected)
    assert set(row["sums"]) == {"numba", "torch"}
    (page,) = tmp_path.glob("kmeans-*.md")
    assert "| search, numba |" in page.read_text()
