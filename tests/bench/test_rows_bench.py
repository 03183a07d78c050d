import importlib.util

from outsize.bench import run_benchmark


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


def test_the_quick_form_times_compositional_tables(tmp_path):
    results = run_benchmark("compositional", tmp_path, quick=True, quiet=True)
    (row,) = results["rows"]
    assert set(row["methods"]) >= {"cce", "robe", "nn.Embedding, sparse"}
    (page,) = tmp_path.glob("compositional-*.md")
    assert "| cce |" in page.read_text()
