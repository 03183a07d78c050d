from outsize.bench import run_benchmark


def test_the_quick_form_measures_both_kinds_of_codes(tmp_path):
    results = run_benchmark("recluster", tmp_path, quick=True, quiet=True)
    assert [row["shared"] for row in results["rows"]] == [False, True] * 2
    assert all(0 < row["error"] < 1 for row in results["rows"])
    assert all(row["seconds"] > 0 for row in results["rows"])
    (page,) = tmp_path.glob("recluster-*.md")
    assert "shared by all columns" in page.read_text()
