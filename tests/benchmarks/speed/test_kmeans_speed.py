import json

import torch

from benchmarks.speed.kmeans import BENCHMARK, rows_of
from outsize.bench import measure
from outsize.bench.runner import results_stem


def test_the_quick_form_measures_every_engine(tmp_path):
    results = measure(BENCHMARK, tmp_path, quick=True, quiet=True)
    for row in results["speed"]:
        errors = [engine["mse"] for engine in row["engines"].values()]
        assert "Outsize, torch" in row["engines"]
        assert max(errors) < 1.1 * min(errors)
    stem = results_stem("kmeans-fits", results["environment"])
    assert "Outsize, torch" in (tmp_path / f"{stem}.md").read_text()
    assert json.loads((tmp_path / f"{stem}.json").read_text()) == results


def test_rows_are_functions_of_their_ids():
    ids = torch.arange(1000)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rows_of(ids[order], 8), rows_of(ids, 8)[order])
