import math

import pytest
import torch
from draw_checks import (
    DTYPES,
    assert_drawn_from,
    assert_independent,
    by_numba,
    exact_logits,
    no_waiting,
    normal,
    on_cuda,
    scored_items,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_draws import draw_by_gumbel_max, draw_by_inversion

from outsize.errors import ConfigError
from outsize.kernels.softmax.chunks import draw_by_chunks
from outsize.kernels.softmax.draws import ScoredItems, draw_from_softmax, softmax_mean
from outsize.kernels.softmax.inversion import systematic_uniforms

gpu = pytest.mark.gpu
PATHS = [
    pytest.param(draw_by_gumbel_max, id="reference"),
    pytest.param(draw_from_softmax, id="cpu"),
    pytest.param(by_numba(draw_from_softmax), id="numba"),
    pytest.param(on_cuda(draw_from_softmax), id="cuda", marks=gpu),
    pytest.param(on_cuda(draw_by_chunks), id="cuda without triton", marks=gpu),
]
PUBLIC = [
    pytest.param(draw_from_softmax, id="cpu"),
    pytest.param(by_numba(draw_from_softmax), id="numba"),
    pytest.param(on_cuda(draw_from_softmax), id="cuda", marks=gpu),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mean_with_draws(draw):
    def mean(queries, items, log_partition, excluded):
        return draw(queries, items, 0, generator(), excluded, True).mean

    return mean


MEANS = [
    pytest.param(softmax_mean, id="cpu"),
    pytest.param(by_numba(softmax_mean), id="numba"),
    pytest.param(mean_with_draws(draw_from_softmax), id="cpu, with the draws"),
    pytest.param(mean_with_draws(by_numba(draw_from_softmax)), id="numba, with the draws"),
    pytest.param(on_cuda(softmax_mean), id="cuda", marks=gpu),
    pytest.param(mean_with_draws(on_cuda(draw_from_softmax)), id="cuda, with draws", marks=gpu),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", PATHS)
@settings(deadline=None, max_examples=15)
@given(
    num_queries=st.integers(1, 20),
    num_items=st.sampled_from([1, 2, 31, 32, 33, 63, 64, 65, 257, 2047, 2049, 5000]),
    dim=st.sampled_from([1, 37, 64]),  # each is a kernel of its own on CUDA
    num_excluded=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.5]),
)
def test_log_partitions_and_logits_are_those_of_the_whole_softmax(
    draw, dtype, num_queries, num_items, dim, num_excluded, share
):
    log_weights = normal(num_items, seed=9)
    log_weights[torch.rand(num_items) < share] = -torch.inf
    items = scored_items(num_items, dim, dtype, log_weights=log_weights)
    queries = normal(num_queries, dim, seed=5)
    excluded = torch.randint(-1, num_items + 3, (num_queries, num_excluded))
    logits = exact_logits(queries, items, excluded)
    draws = draw(queries, items, 3, generator(), excluded)
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    has_items = (logits > -torch.inf).any(dim=1)
    assert torch.equal(draws.rows >= 0, has_items.unsqueeze(1).expand_as(draws.rows))
    drawn = logits.gather(1, draws.rows.clamp(min=0)).float()
    drawn = torch.where(draws.rows >= 0, drawn, -torch.inf)
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)
    assert torch.isfinite(draws.logits[has_items]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", PATHS)
def test_many_queries_and_items_are_taken_a_tile_at_a_time(draw, dtype):
    queries, items = normal(1100, 8, seed=5), scored_items(1500, 8, dtype)
    excluded = torch.randint(1500, (1100, 2))
    logits = exact_logits(queries, items, excluded)
    draws = draw(queries, items, 2, generator(), excluded)
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    drawn = logits.gather(1, draws.rows).float()
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)


def softmaxes(num_items):
    """Name → one query, items and exclusions with a softmax of that kind."""
    flat = scored_items(num_items, 8)
    peaked = normal(1, 8, seed=1) * 12
    heavy = exact_logits(peaked, flat).topk(3).indices
    dominant = flat.log_weights.clone()
    dominant[num_items // 2] += 20
    return {
        "flat": (normal(1, 8, seed=1) * 0.1, flat, None),
        "peaked": (peaked, flat, None),
        "without its heaviest": (peaked, flat, heavy),
        "int8": (normal(1, 8, seed=1), scored_items(num_items, 8, torch.int8), None),
        "without its dominant": (
            normal(1, 8, seed=1),
            ScoredItems(flat.vectors, None, dominant),
            torch.tensor([[num_items // 2, -1, num_items // 2, 0]]),
        ),
        "few": (
            normal(1, 8, seed=1),
            scored_items(
                num_items,
                8,
                log_weights=torch.where(torch.arange(num_items) % 97 == 5, 0.0, -torch.inf),
            ),
            None,
        ),
    }


@pytest.mark.parametrize("kind", list(softmaxes(300)))
@pytest.mark.parametrize("draw", PATHS)
def test_draws_follow_the_softmax(draw, kind):
    num_items, num = (300, 20_000) if draw is draw_by_gumbel_max else (5001, 200_000)
    queries, items, excluded = softmaxes(num_items)[kind]
    draws = draw(queries, items, num, generator(), excluded)
    assert_drawn_from(draws.rows, exact_logits(queries, items, excluded)[0])


@pytest.mark.parametrize("draw", PUBLIC)
def test_draws_of_one_query_and_of_several_are_independent(draw):
    queries, items, _ = softmaxes(5001)["peaked"]
    rows = draw(queries.expand(2, -1).contiguous(), items, 100_000, generator()).rows
    assert_independent(rows[0, ::2], rows[0, 1::2])
    assert_independent(rows[0, 1:-1:2], rows[0, 2::2])
    assert_independent(rows[0], rows[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", [*PUBLIC, PATHS[-1]])
def test_systematic_draws_repeat_an_item_as_its_probability_asks(draw, dtype):
    queries, items = normal(30, 8, seed=5), scored_items(5001, 8, dtype)
    excluded = torch.randint(-1, 5001, (30, 3))
    draws = draw(queries, items, 64, generator(), excluded, False, True)
    logits = exact_logits(queries, items, excluded)
    counts = torch.zeros(30, 5001).scatter_add_(1, draws.rows, torch.ones(30, 64))
    assert ((counts - 64 * logits.softmax(dim=1)).abs() < 1.01).all()
    drawn = logits.gather(1, draws.rows).float()
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)


def test_systematic_draws_are_one_inversion_over_all_items():
    queries, items = normal(20, 8, seed=5), scored_items(5001, 8)
    excluded = torch.randint(-1, 5001, (20, 3))
    draws = draw_from_softmax(queries, items, 50, generator(3), excluded, systematic=True)
    expected = draw_by_inversion(
        queries, items, systematic_uniforms(20, 50, generator(3)), excluded
    )
    assert (draws.rows != expected.rows).double().mean() < 0.01  # sums in another order


@pytest.mark.parametrize("draw", PUBLIC)
def test_each_systematic_draw_alone_follows_the_softmax(draw):
    queries, items, _ = softmaxes(300)["peaked"]
    rows = draw(
        queries.expand(3000, -1).contiguous(), items, 5, generator(), None, False, True
    ).rows
    for place in range(5):
        assert_drawn_from(rows[:, place], exact_logits(queries, items)[0])


@pytest.mark.parametrize("draw", PUBLIC)
def test_each_of_many_queries_draws_from_its_own_softmax(draw):
    items = scored_items(50, 4)
    queries = normal(40, 4, seed=3)
    draws = draw(queries, items, 5000, generator(), torch.arange(40).unsqueeze(1))
    for rows, logits in zip(
        draws.rows, exact_logits(queries, items, torch.arange(40)[:, None]), strict=True
    ):
        assert_drawn_from(rows, logits)


@pytest.mark.parametrize("draw", PUBLIC)
def test_the_same_seed_draws_the_same(draw):
    queries, items = normal(5, 8), scored_items(3000, 8)
    first, again, other = (draw(queries, items, 50, generator(seed)).rows for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("draw", PUBLIC)
def test_a_query_with_everything_excluded_draws_nothing(draw):
    excluded = torch.stack((torch.arange(40), torch.full((40,), -1)))
    systematic = draw(normal(2, 8), scored_items(40, 8), 3, generator(), excluded, False, True)
    assert (systematic.rows >= 0).tolist() == [[False] * 3, [True] * 3]
    draws = draw(normal(2, 8), scored_items(40, 8), 3, generator(), excluded)
    assert (draws.rows[0] == -1).all()
    assert (draws.logits[0] == -torch.inf).all()
    assert draws.log_partition[0] == -torch.inf
    assert (draws.rows[1] >= 0).all()


@pytest.mark.parametrize("draw", PUBLIC)
def test_the_only_item_that_counts_is_always_drawn(draw):
    log_weights = torch.full((3000,), -torch.inf)
    log_weights[2999] = -50.0
    items = scored_items(3000, 8, log_weights=log_weights)
    assert (draw(normal(3, 8), items, 1000, generator()).rows == 2999).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3.4e38])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", PUBLIC)
def test_a_query_that_is_not_finite_draws_nothing_and_says_so(draw, dtype, bad):
    if bad == 3.4e38 and dtype == torch.float32:
        pytest.skip("float32 holds this number; bfloat16 does not")
    queries = normal(3, 8)
    queries[1] = 0.0
    queries[1, 0] = bad
    draws = draw(queries, scored_items(70, 8, dtype), 4, generator())
    assert draws.log_partition.isnan().tolist() == [False, True, False]
    assert (draws.rows[1] == -1).all()
    assert (draws.logits[1] == -torch.inf).all()
    assert ((draws.rows[[0, 2]] >= 0) & (draws.rows[[0, 2]] < 70)).all()


@pytest.mark.parametrize("draw", PUBLIC)
def test_huge_logits_do_not_overflow(draw):
    queries, items = normal(4, 8) * 1e4, scored_items(500, 8)
    draws = draw(queries, items, 5, generator())
    logits = exact_logits(queries, items)
    torch.testing.assert_close(draws.log_partition, logits.logsumexp(1).float(), rtol=1e-5, atol=0)
    best = logits.amax(dim=1, keepdim=True).float().expand_as(draws.logits)
    torch.testing.assert_close(draws.logits, best, rtol=1e-4, atol=0)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("draw", PUBLIC)
def test_nothing_to_ask_draw_or_draw_from(draw, mean):
    items, no_items = scored_items(9, 8), scored_items(0, 8)
    draws = draw(normal(3, 8), no_items, 2, generator(), torch.zeros(3, 1).long())
    assert (draws.rows == -1).all()
    assert (draws.log_partition == -torch.inf).all()
    assert (mean(normal(3, 8), no_items, draws.log_partition, None) == 0).all()
    assert draw(normal(0, 8), items, 2, generator(), None).rows.shape == (0, 2)
    assert mean(normal(0, 8), items, torch.zeros(0), None).shape == (0, 8)
    only_partition = draw(normal(3, 8), items, 0, generator(), torch.zeros(3, 0).long())
    assert only_partition.rows.shape == (3, 0)
    assert only_partition.log_partition.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_queries", "num_items"), [(6, 1), (6, 33), (6, 3001), (1100, 700)])
@pytest.mark.parametrize("mean", MEANS)
def test_the_mean_of_the_softmax(mean, num_queries, num_items, dtype):
    queries, items = normal(num_queries, 13, seed=3), scored_items(num_items, 13, dtype)
    excluded = torch.randint(-1, num_items, (num_queries, 4))
    logits = exact_logits(queries, items, excluded)
    log_partition = logits.logsumexp(dim=1).float()
    vectors = items.vectors.double()
    vectors = vectors if items.scales is None else vectors * items.scales.double().unsqueeze(1)
    expected = (logits.softmax(dim=1).nan_to_num() @ vectors).float()
    found = mean(queries, items, log_partition, excluded)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("shift", [-1e4, 1e4])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("mean", MEANS)
def test_the_mean_holds_where_logits_are_far_apart_and_far_from_0(mean, descending, shift):
    num_items = 5000
    climb = (
        torch.linspace(0, 300, num_items).flip(0)
        if descending
        else torch.linspace(0, 300, num_items)
    )
    items = scored_items(num_items, 8, log_weights=climb + shift)
    queries = normal(300, 8)
    logits = exact_logits(queries, items, None)
    expected = (logits.softmax(dim=1) @ items.vectors.double()).float()
    found = mean(queries, items, logits.logsumexp(dim=1).float(), None)
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=1e-3)  # logits of 10⁴ in float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("draw", PUBLIC)
def test_a_mean_changes_no_draw_and_is_nan_for_a_query_that_is_not_finite(draw, dtype):
    queries, items = normal(4, 8), scored_items(700, 8, dtype)
    queries[1, 3], queries[2, 0] = torch.nan, torch.inf
    excluded = torch.zeros(4, 1).long()
    alone = draw(queries, items, 3, generator(), excluded)
    both = draw(queries, items, 3, generator(), excluded, True)
    assert torch.equal(both.rows, alone.rows)
    assert torch.equal(both.logits, alone.logits)
    assert both.mean.isnan().all(dim=1).tolist() == [False, True, True, False]


def test_nothing_carries_a_gradient_and_autocast_changes_nothing():
    queries, items = normal(4, 8).requires_grad_(), scored_items(300, 8)
    plain = draw_from_softmax(queries, items, 2, generator())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draws = draw_from_softmax(queries, items, 2, generator())
        mean = softmax_mean(queries, items, draws.log_partition)
    assert not draws.logits.requires_grad
    assert not draws.log_partition.requires_grad
    assert torch.equal(draws.log_partition, plain.log_partition)
    assert torch.equal(mean, softmax_mean(queries, items, plain.log_partition))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_is_never_waited_for(dtype):
    items = scored_items(5000, 24, dtype)
    scales = None if items.scales is None else items.scales.cuda()
    items = ScoredItems(items.vectors.cuda(), scales, items.log_weights.cuda())
    queries, excluded = normal(9, 24).cuda(), torch.zeros(9, 2).long().cuda()
    generator = torch.Generator("cuda")
    draws = draw_from_softmax(queries, items, 4, generator, excluded)
    with no_waiting():
        draw_from_softmax(queries, items, 4, generator, excluded)
        softmax_mean(queries, items, draws.log_partition, excluded)


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_scored_is_refused():
    items = scored_items(9, 8)
    with pytest.raises(ConfigError, match="dim 7 on cpu cannot be scored"):
        draw_from_softmax(normal(2, 7), items, 1, generator())
    with pytest.raises(ConfigError, match="queries must be a float32 matrix"):
        draw_from_softmax(normal(2, 8).double(), items, 1, generator())
    with pytest.raises(ConfigError, match="one line for each of 2 queries"):
        draw_from_softmax(normal(2, 8), items, 1, generator(), torch.zeros(3, 1).long())
    with pytest.raises(ConfigError, match="num must not be negative"):
        draw_from_softmax(normal(2, 8), items, -1, generator())
    with pytest.raises(ConfigError, match="int8 vectors need scales"):
        ScoredItems(items.vectors.to(torch.int8), None, items.log_weights)
    with pytest.raises(ConfigError, match="float32, bfloat16 or int8"):
        ScoredItems(items.vectors.half(), None, items.log_weights)
    with pytest.raises(ConfigError, match="log_weights must be one float32 number"):
        ScoredItems(items.vectors, None, items.log_weights[:5])
