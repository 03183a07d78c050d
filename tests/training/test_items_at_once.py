"""Without gradients, items are encoded a step's worth at a time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from retrieval_runs import make_loop, without_strays

from outsize.models import TwoTower
from outsize.negatives.contract import ENCODED_AT_ONCE, encoded_at_once


@given(st.integers(1, 1 << 40))
def test_never_more_than_a_step_encodes_unless_that_is_little(number):
    found = encoded_at_once(number)
    assert 256 <= found <= ENCODED_AT_ONCE
    assert found <= max(256, number)


@pytest.fixture
def sizes(monkeypatch):
    """Items per call of the encoder without gradients."""
    found = []
    encode_items = TwoTower.encode_items

    def recorded(model, features):
        if not torch.is_grad_enabled():
            found.append(len(features["item"]))
        return encode_items(model, features)

    monkeypatch.setattr(TwoTower, "encode_items", recorded)
    return found


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        (["train.batch_size=300", "negatives.kind=in-batch"], 300),
        (["train.batch_size=60", "negatives.num_negatives=4"], 300),
        (["train.batch_size=60", "negatives.num_negatives=4", "negatives.chunk_size=7"], 7),
        (["train.batch_size=60", "negatives.kind=top-items", "negatives.num_candidates=9"], 256),
    ],
    ids=["in-batch", "cache", "in chunks", "index"],
)
def test_fills_sweeps_and_evaluations_take_a_step_of_items(settings, largest, sizes):
    config = without_strays("data.num_items=700", "negatives.refresh=0.6", *settings)
    loop = make_loop(config)
    loop.begin()
    filled = list(sizes)
    next(loop.steps())
    swept = sizes[len(filled) :]
    loop.task.evaluate("validation")
    evaluated = sizes[len(filled) + len(swept) :]
    assert max(sizes) == largest
    assert sum(evaluated) == 700
    if config.negatives.items_per_step(60, 700) == 240:  # a cache
        assert sum(filled) == 700
        assert sum(swept) == 420
