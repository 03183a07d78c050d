import json

import torch

from outsize.bench import run_benchmark
from outsize.bench.kmeans import rows_of


def test_the_quick_form_measures_every_engine(tmp_path):
    results = run_benchmark("kmeans", tmp_path, quick=True, quiet=True)
    for row in results["speed"]:
        errors = [engine["mse"] for engine in row["engines"].values()]
        assert "Outsize, torch" in row["engines"]
        assert max(errors) < 1.1 * min(errors)
    (page,) = tmp_path.glob("kmeans-*.md")
    assert "Outsize, torch" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text()) == results


def test_rows_are_functions_of_their_ids():
    ids = torch.arange(1000)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rows_of(ids[order], 8), rows_of(ids, 8)[order])
