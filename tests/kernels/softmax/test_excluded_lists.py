"""Rows that do not count, given as lists of any length."""

import pytest
import torch
from draw_checks import DTYPES, exact_logits, normal, on_cuda, scored_items
from reference_draws import draw_by_gumbel_max

from outsize.errors import ConfigError
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.best_items import top_items
from outsize.kernels.softmax.draws import draw_from_softmax, softmax_mean

NUM_ITEMS = 300
# Nothing, one, some twice and unordered, everything, all but one, and what is not a row.
LISTS = [[], [7], [5, 299, 5, 0, 32, 31], list(range(300)), [j for j in range(300) if j != 40],
         [-1, 300, 7, 10**6]]  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def ragged(lists):
    values = torch.tensor([value for each in lists for value in each], dtype=torch.int64)
    return Ragged.from_sizes(values, torch.tensor([len(each) for each in lists]))


def matrix(lists):
    width = max(map(len, lists))
    return torch.tensor([[*each, *[-1] * (width - len(each))] for each in lists])


def there(function, device):
    if device == "cpu":
        return function

    def run(queries, items, *rest):
        rest = [
            Ragged(r.values.cuda(), r.offsets.cuda(), r.width) if isinstance(r, Ragged) else r
            for r in rest
        ]
        return on_cuda(function)(queries, items, *rest)

    return run


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", DEVICES)
def test_what_is_drawn_ranked_and_averaged_leaves_out_every_row_of_a_list(device, dtype):
    lists = LISTS * 400  # more queries than are asked at once
    queries, items = normal(len(lists), 8, seed=1), scored_items(NUM_ITEMS, 8, dtype)
    logits = exact_logits(queries, items, matrix(lists))
    draw = there(draw_from_softmax, device)(queries, items, 4, torch.Generator(), ragged(lists))
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draw.log_partition, expected, rtol=1e-4, atol=1e-4)
    taken = logits.gather(1, draw.rows.clamp_min(0))
    assert torch.isfinite(taken[draw.rows >= 0]).all()
    assert ((draw.rows < 0).all(dim=1) == (expected == -torch.inf)).all()
    best, _ = there(top_items, device)(queries, items, 3, ragged(lists))
    wanted = logits.topk(3).indices
    assert torch.equal(best[:, 0] >= 0, logits.amax(dim=1) > -torch.inf)
    assert (logits.gather(1, best.clamp_min(0))[best >= 0] > -torch.inf).all()
    some = best[:, 0] >= 0
    if dtype == torch.float32:
        assert torch.equal(best[some, 0], wanted[some, 0])
    mean = there(softmax_mean, device)(queries, items, expected, ragged(lists))
    vectors = items.vectors.double()
    vectors = vectors if items.scales is None else vectors * items.scales.double().unsqueeze(1)
    shares = torch.where(some.unsqueeze(1), logits.softmax(dim=1), 0.0)
    torch.testing.assert_close(mean, (shares @ vectors).float(), rtol=1e-2, atol=1e-2)


def test_lists_and_a_matrix_of_the_same_rows_draw_the_same():
    queries, items = normal(len(LISTS), 8, seed=1), scored_items(NUM_ITEMS, 8)
    for draw in (draw_from_softmax, draw_by_gumbel_max):
        one, other = (
            draw(queries, items, 3, torch.Generator().manual_seed(4), given)
            for given in (ragged(LISTS), matrix(LISTS))
        )
        assert torch.equal(one.rows, other.rows)
        assert torch.equal(one.log_partition, other.log_partition)


def test_lists_of_another_number_of_queries_are_refused():
    with pytest.raises(ConfigError, match="a list for each of 2 queries, but got 6"):
        draw_from_softmax(
            normal(2, 8), scored_items(NUM_ITEMS, 8), 1, torch.Generator(), ragged(LISTS)
        )
