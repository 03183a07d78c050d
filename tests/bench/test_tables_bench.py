from outsize.bench import run_benchmark
from outsize.tables import TABLES


def test_the_quick_form_times_every_method(tmp_path):
    results = run_benchmark("tables", tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    assert set(row["methods"]) == {"nn.Embedding, sparse", *TABLES}
    for timing in row["methods"].values():
        assert timing.keys() == {"median_s", "p10_s", "p90_s", "rounds", "lookup_s"}
        assert timing["rounds"] == 3
    (page,) = tmp_path.glob("tables-*.md")
    assert "| cce |" in page.read_text()
