"""The benchmark of messages between ranks."""

from benchmarks.speed.swaps import BENCHMARK
from outsize.bench import measure


def test_it_times_both_ways_in_two_ranks(tmp_path):
    (point,) = measure(BENCHMARK, tmp_path, quick=True, quiet=True)["points"]
    assert list(point["sizes"]) == ["1000", "100000"]
    page = (tmp_path / "swaps-cpu.md").read_text()
    assert "| 2 | in memory | 100,000 | " in page
