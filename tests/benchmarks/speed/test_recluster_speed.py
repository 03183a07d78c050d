from benchmarks.speed.recluster import BENCHMARK
from outsize.bench import measure
from outsize.bench.runner import results_stem


def test_the_quick_form_measures_both_kinds_of_codes(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    assert [row["shared"] for row in results["rows"]] == [False, True] * 2
    assert all(0 < row["error"] < 1 for row in results["rows"])
    assert all(isinstance(row["seconds"], float) for row in results["rows"])
    stem = results_stem("recluster", results["environment"])
    assert "shared by all columns" in (tmp_path / f"{stem}.md").read_text()
