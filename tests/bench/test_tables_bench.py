from outsize.bench import run_benchmark
from outsize.tables import TABLES


def test_the_quick_form_times_every_method(tmp_path):
    results = run_benchmark("tables", tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    assert set(row["methods"]) == {"nn.Embedding, sparse", *TABLES} - {"full"}
    for timing in row["methods"].values():
        assert timing["p10_s"] <= timing["median_s"] <= timing["p90_s"]
        assert timing["rounds"] == 3
    (page,) = tmp_path.glob("tables-*.md")
    assert "| cce |" in page.read_text()
