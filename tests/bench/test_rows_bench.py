import importlib.util

import pytest

from outsize.bench import rows_on_device, run_benchmark


def test_the_quick_form_times_rows_beside_their_peers(tmp_path):
    results = run_benchmark("rows", tmp_path, quick=True, quiet=True)
    (point,) = results["points"]
    peers = {"torch_sgd", "torch_adagrad"}
    if importlib.util.find_spec("fbgemm_gpu"):
        peers.add("fbgemm")
    assert set(point["variants"]) == {"fused", "staged"} | peers
    for name in peers:
        expected = point["variants"][name]["median_ms"] / point["variants"]["fused"]["median_ms"]
        assert abs(results[f"speedup_vs_{name}"] - expected) < 1e-9
    (page,) = tmp_path.glob("rows-*.md")
    assert "| torch_adagrad |" in page.read_text()


def test_the_settings_of_a_gpu_are_measured_in_turns_with_their_peers():
    results = rows_on_device.run(True, print, "cpu")
    (point,) = results["points"]
    times = {name: found["median_ms"] for name, found in point["variants"].items()}
    assert len(times) == 8
    for rule in ("sgd", "adagrad"):
        expected = times[f"torch_{rule}"] / times[f"fused_{rule}"]
        assert results[f"speedup_vs_torch_{rule}"] == pytest.approx(expected)
    assert "| 1,000 × 16 | float32 | 64 × 3 |" in rows_on_device.table(results)


@pytest.mark.gpu
def test_the_quick_form_times_rows_on_cuda(tmp_path):
    results = run_benchmark("rows", tmp_path, quick=True, quiet=True, device="cuda")
    assert results["points"][0]["extra_bytes"]["fused_sgd"] > 0
    assert (tmp_path / "rows-gpu.md").exists()


def test_the_quick_form_times_compositional_tables(tmp_path):
    results = run_benchmark("compositional", tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    assert set(row["methods"]) >= {"cce", "robe", "nn.Embedding, sparse"}
    (page,) = tmp_path.glob("compositional-*.md")
    assert "| cce |" in page.read_text()
