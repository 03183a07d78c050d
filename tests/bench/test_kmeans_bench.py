import json

import torch

from outsize.bench import run_benchmark
from outsize.bench.kmeans import rows_of


def test_the_quick_form_measures_the_job_and_every_engine(tmp_path):
    results = run_benchmark("kmeans", tmp_path, quick=True, quiet=True)
    job = results["job"]
    assert job["rest_mse"] < 1.2 * job["fit_mse"]  # rows that were not fitted are served as well
    assert all(job[phase] > 0 for phase in ("making_s", "fit_s", "nearest_s"))
    for row in results["speed"]:
        errors = [engine["mse"] for engine in row["engines"].values()]
        assert "Outsize, torch" in row["engines"]
        assert max(errors) < 1.1 * min(errors)
    (page,) = tmp_path.glob("kmeans-*.md")
    assert "nearest centroid of every row" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text()) == results


def test_rows_are_functions_of_their_ids():
    ids = torch.arange(1000)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rows_of(ids[order], 8), rows_of(ids, 8)[order])
