from outsize.bench import run_benchmark


def test_the_quick_form_times_a_cache_beside_its_store(tmp_path, unchecked_shapes):
    results = run_benchmark("cache", tmp_path, quick=True, quiet=True)
    (point,) = results["points"]
    assert point["num_ranks"] == 2
    for wire in ("float32", "int8"):
        cells = point["wires"][wire]
        assert 0 < cells["hit_rate"] <= 1
        assert cells["sharded"]["rounds"] == 2
        assert results[f"ratio_{wire}"] > 0
        assert point[f"cpu_ratio_{wire}"] > 0
    assert set(results["growth"]["variants"]) == {"0", "4096", "8192"}
    assert results["lookups"]["million_per_s"] > 0
    (page,) = tmp_path.glob("cache-*.md")
    assert "| 2 | int8 |" in page.read_text()
