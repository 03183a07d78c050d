"""The share of draw and commit in a step."""

import pytest
import torch

from benchmarks.negatives.cache_overhead import (
    BENCHMARK,
    Sizes,
    Transformer,
    filled_cache,
    steps_of,
)


def test_what_is_timed_draws_and_writes_back():
    sizes = Sizes(batch=6, num_negatives=4, num_items=300, dim=32)
    cache = filled_cache(sizes, "float32", "cpu")
    assert cache.num_held == 300
    steps = steps_of(cache, sizes)
    draw = steps["draw"]()
    assert draw.rows.shape == (6, 4)
    assert draw.features["input_ids"].shape[-1] == 64
    before = cache.clock
    steps["commit"]()
    assert cache.clock == before + 1
    assert int((cache.ages() == 0).sum()) > 6  # the positives and what was drawn


def test_the_encoder_has_the_shape_of_minilm():
    model = Transformer(384)
    layers = sum(weight.numel() for weight in model.layers.parameters())
    assert layers == 6 * (12 * 384**2 + 13 * 384)
    vectors = model(torch.randint(1000, (2, 64)))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_shares_are_of_the_batch_and_of_the_whole_step():
    parts = {"draw": {"median_ms": 30.0}, "commit": {"median_ms": 10.0}}
    results = {
        "sizes": {"batch": 10, "num_negatives": 4, "num_items": 9, "dim": 2, "num_texts": 5},
        "cache": {"bfloat16": parts},
        "encoding": {"a model": {"median_ms": 90.0}},
    }
    page = BENCHMARK.table(results)
    row = "| a model | bfloat16 | 30.0 | 10.0 | 360 | 720 |"
    assert f"{row} 3.6%, met | 10.0%, met |" in page
    parts["draw"]["median_ms"] = 31.0
    assert "3.7%, met | 10.2%, not met |" in BENCHMARK.table(results)
    assert BENCHMARK.run_on(True, lambda text: None, "cpu")["encoding"].keys() == {"random weights"}


def test_a_model_that_is_no_folder_is_refused(tmp_path):
    pytest.importorskip("sentence_transformers")
    with pytest.raises(ValueError, match=r"modules\.json"):
        BENCHMARK.run(True, lambda text: None, tmp_path)
