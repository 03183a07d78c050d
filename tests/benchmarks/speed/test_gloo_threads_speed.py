"""The benchmark of gloo's threads."""

from benchmarks.speed.gloo_threads import BENCHMARK, POLICIES
from outsize.bench import measure


def test_it_times_steps_of_two_ranks_under_both_policies(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    (point,) = results["points"]
    assert list(point["steps"]) == ["dense", "sharded rows", "cached rows"]
    assert all(times[policy]["median_s"] > 0 for times in point["steps"].values()
               for policy in POLICIES)  # fmt: skip
    page = (tmp_path / "gloo-threads-cpu.md").read_text()
    assert page.count("| 2 | ") == 3
