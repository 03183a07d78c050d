import importlib.util
import json

import pytest

from benchmarks.runner import run_command
from benchmarks.speed.kmeans_loops import BENCHMARK
from outsize.bench import measure


def test_the_quick_form_times_k_means_beside_its_peers(tmp_path):
    pytest.importorskip("numba")
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    peers = {"torch"} | ({"faiss"} if importlib.util.find_spec("faiss") else set())
    assert set(row["search"]) == {"numba"} | peers
    for name in peers:
        expected = row["search"][name]["median_ms"] / row["search"]["numba"]["median_ms"]
        assert results[f"speedup_vs_{name}"] == pytest.approx(expected)
    assert set(row["sums"]) == {"numba", "torch"}
    (page,) = tmp_path.glob("kmeans-*.md")
    assert "| search, numba |" in page.read_text()


def test_the_command_takes_a_device_where_there_is_a_choice(tmp_path):
    run_command(BENCHMARK, ["--quick", "--device", "cpu", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("kmeans-cpu.json")
    command = json.loads(path.read_text())["command"]
    assert command == f"{BENCHMARK.command} --device cpu --quick"
