import pytest
import torch

import outsize
from outsize.bench import run_benchmark
from outsize.bench.compositional_cuda import _bytes_moved, _Point


def test_the_bytes_of_a_step_are_ids_pointers_vectors_gradients_and_codes():
    point = _Point(ids=1000, batch=10, dim=16, columns=4, cap=512)
    spec = outsize.TableSpec("ad", 1000, 16)
    plain = outsize.build_table("cce", spec, max_params=512)
    each_way = 8 + 4 * 1 + 16 * 4  # an id, four pointers of a byte, a vector or its gradient
    assert _bytes_moved(plain, point) == 10 * 2 * each_way + 4 * 512
    hashed = outsize.build_table("robe", spec, max_params=512)
    assert _bytes_moved(hashed, point) == 10 * 2 * (8 + 64) + 4 * 512


@pytest.mark.gpu
def test_the_quick_form_times_every_method_on_cuda(tmp_path):
    results = run_benchmark("compositional", tmp_path, quick=True, quiet=True, device="cuda")
    (row,) = results["rows"]
    assert row["cce_vs_sparse"] > 0
    assert row["methods"]["cce"]["share"] > 0
    assert row["methods"]["cce"]["repeats_itself"]
    assert "| circular |" in (tmp_path / "compositional-gpu.md").read_text()


@pytest.mark.gpu
def test_every_table_method_is_timed_on_cuda(tmp_path):
    results = run_benchmark("tables", tmp_path, quick=True, quiet=True, device="cuda")
    assert set(results["rows"][0]["methods"]) >= set(outsize.tables.TABLES)
    assert torch.cuda.is_initialized()
