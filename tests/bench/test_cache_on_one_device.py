from outsize.bench.cache_on_one_device import run_on_one_device, table_of_one_device


def test_a_quick_run_shows_every_variant():
    results = run_on_one_device(True, lambda line: None, "cpu")
    (point,) = results["steps"]
    assert list(point["variants"]) == ["torch SGD", "torch Adagrad", "store", "cached"]
    assert list(results["growth"]["variants"]) == ["0", "4096", "8192"]
    assert 0 < point["hit_rate"] < 1
    for full in results["full"]:
        assert full["evictions_per_step"] == {"4096": 5.0, "8192": 5.0}, full["eviction"]
    page = table_of_one_device(results)
    assert f"| {point['ratio']:.2f} | – |" in page
