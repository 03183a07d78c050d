import math

import pytest
import torch
from draw_checks import DTYPES, exact_logits, normal, on_cuda, scored_items
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.softmax.best_items import _first_highest, top_items
from outsize.kernels.softmax.draws import ScoredItems

TOPS = [
    pytest.param(top_items, id="cpu"),
    pytest.param(on_cuda(top_items), id="cuda", marks=pytest.mark.gpu),
]


def best(logits, num):
    """The rows and scores of a stable sort, filled up to `num`."""
    scores, rows = logits.sort(dim=1, descending=True, stable=True)
    missing = max(0, num - logits.shape[1])
    scores = torch.nn.functional.pad(scores[:, :num], (0, missing), value=-torch.inf)
    rows = torch.nn.functional.pad(rows[:, :num], (0, missing), value=-1)
    return rows.masked_fill(scores == -torch.inf, -1), scores.float()


@pytest.mark.parametrize("top", TOPS)
@settings(deadline=None, max_examples=30)
@given(
    num_queries=st.sampled_from([1, 3, 1100]),
    num_items=st.sampled_from([0, 1, 15, 16, 17, 255, 256, 1024, 3000]),
    num=st.sampled_from([0, 1, 2, 15, 40, 300]),
    num_excluded=st.integers(0, 3),
    share=st.sampled_from([0.0, 0.9]),
)
def test_the_best_are_found_and_of_equals_the_lowest_rows(
    top, num_queries, num_items, num, num_excluded, share
):
    # Small whole numbers: logits are exact, and most are equal to many others.
    vectors = torch.randint(-1, 2, (num_items, 4)).float()
    log_weights = torch.randint(-1, 2, (num_items,)).float()
    log_weights[torch.rand(num_items) < share] = -torch.inf
    items = ScoredItems(vectors, None, log_weights)
    queries = torch.randint(-1, 2, (num_queries, 4)).float()
    excluded = torch.randint(-1, max(num_items, 1), (num_queries, num_excluded))
    rows, scores = top(queries, items, num, excluded)
    expected_rows, expected_scores = best(exact_logits(queries, items, excluded), num)
    assert torch.equal(scores, expected_scores)
    assert torch.equal(rows, expected_rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("top", TOPS)
def test_every_dtype_is_scored_as_draws_score_it(top, dtype):
    queries, items = normal(5, 37, seed=4), scored_items(3000, 37, dtype)
    rows, scores = top(queries, items, 20, None)
    expected_rows, expected_scores = best(exact_logits(queries, items), 20)
    torch.testing.assert_close(scores, expected_scores, atol=1e-4, rtol=1e-5)
    assert (rows == expected_rows).double().mean() > 0.95


def test_both_zeros_are_equal():
    assert _first_highest(torch.tensor([[-0.0, 0.0, -1.0]]), 3)[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("top", TOPS)
def test_a_query_that_is_not_finite_has_no_best(top, bad):
    queries = normal(2, 8)
    queries[0, 3] = bad
    rows, scores = top(queries, scored_items(1000, 8), 5, None)
    assert (rows[0] == -1).all()
    assert (scores[0] == -torch.inf).all()
    assert (rows[1] >= 0).all()
