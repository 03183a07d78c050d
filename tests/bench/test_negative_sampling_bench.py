import json

from outsize.bench import run_benchmark


def test_the_quick_form_times_every_way_to_draw(tmp_path):
    results = run_benchmark("sample", tmp_path, quick=True, quiet=True, device="cpu")
    for row in results["sizes"]:
        for way in row["ways"].values():
            assert way.keys() >= {"median_s", "p10_s", "p90_s"}
    (page,) = tmp_path.glob("negative-sampling-*.md")
    assert "sample, 16 draws" in page.read_text()
    kept = json.loads(page.with_suffix(".json").read_text())
    assert [row["items"] for row in kept["growth"]["rows"]] == [512, 1024]
    assert kept["nums"][0]["draws"].keys() == {"1", "4", "16", "64", "256"}
