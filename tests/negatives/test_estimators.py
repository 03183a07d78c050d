"""Values and gradients of the loss, and what they are expected to be."""

import math

import pytest
import torch

from outsize.errors import ConfigError
from outsize.negatives import ESTIMATORS, NegativeCache, cached_softmax, in_batch_logits
from outsize.negatives.cache.draw import Draw
from outsize.negatives.estimators import shared_weights
from outsize.negatives.ways.in_batch import items_to_queries

QUERIES = torch.tensor([[-1.0], [1.0], [3.0]])
POSITIVES = torch.tensor([[2.0], [2.0], [1.0]])
FIRST_THREE = ("weighted", "sampled", "control-variate")  # independent draws, per query


def cache_of(vectors, **options):
    vectors = torch.as_tensor(vectors, dtype=torch.float32)
    cache = NegativeCache(len(vectors), vectors.shape[1], precision="float32", **options)
    cache.push({}, vectors, torch.arange(len(vectors)))
    return cache


def drawing(cache, queries, rows, **options):
    """A draw whose rows are those given."""
    draw = cache.sample(queries, num=rows.shape[1], **options)
    fields = {name: getattr(draw, name) for name in draw.__dataclass_fields__}
    embeddings = cache.items.embeddings_at(rows.flatten()).unflatten(0, rows.shape)
    return Draw(**(fields | {"rows": rows, "keys": rows, "embeddings": embeddings}))


def test_the_value_is_the_cross_entropy():
    cache = cache_of([[1.0], [-1.0]])
    draw = cache.sample(QUERIES, num=1)
    for estimator in ("weighted", "sampled"):
        report = cached_softmax(QUERIES, POSITIVES, draw.embeddings, draw, 1.0, estimator)
        expected = torch.tensor([3.169846, 0.349012, 0.694385])
        torch.testing.assert_close(report.losses, expected, atol=2e-6, rtol=0)
        expected = torch.tensor([0.0420101, 0.705385, 0.499381])
        torch.testing.assert_close(report.p_positive, expected, atol=2e-6, rtol=0)
        assert report.loss.item() == pytest.approx(report.losses.mean().item())


def test_the_gradient_is_that_of_the_public_code():
    cache = cache_of([[1.0], [-1.0]])
    rows = torch.tensor([[0], [1], [0]])
    draw = drawing(cache, QUERIES, rows)
    query_weight, item_weight = (torch.ones(1, requires_grad=True) for _ in range(2))
    drawn = cache.items.embeddings_at(rows.flatten()).view(3, 1, 1) * item_weight
    report = cached_softmax(QUERIES * query_weight, POSITIVES * item_weight, drawn, draw)
    report.loss.backward()
    assert query_weight.grad.item() == pytest.approx(0.024715006, abs=1e-6)
    assert item_weight.grad.item() == pytest.approx(0.024715006, abs=1e-6)


def test_among_the_best_two_of_each_half_the_value_is_that_of_the_public_code():
    cache = cache_of([[1.0], [-1.0], [3.0], [2.0]])
    queries = torch.tensor([[-1.0], [1.0]])
    others = torch.tensor([[0, 2], [1, 3]])  # all but the better one of each half
    draw = cache.sample(queries, num=1, exclude=others)
    report = cached_softmax(queries, torch.full((2, 1), 2.0), draw.embeddings, draw)
    expected = torch.tensor([3.0949229, 1.4076060])
    torch.testing.assert_close(report.losses, expected, atol=2e-6, rtol=0)


def test_staleness_is_relative_to_what_items_are_now():
    cache = cache_of([[1.0], [-1.0]])
    draw = drawing(cache, QUERIES, torch.tensor([[0], [1], [0]]))
    fresh = torch.tensor([[[2.0]], [[-3.0]], [[2.0]]])
    report = cached_softmax(QUERIES, POSITIVES, fresh, draw)
    expected = torch.tensor([[1 / 4], [4 / 9], [1 / 4]])
    torch.testing.assert_close(report.staleness, expected)


def gradients(estimator, k, extra=False, seed=0, turns=400, beta=3.0):
    """Gradients of each turn in query, positive, item weights and β, beside the exact ones."""
    generator = torch.Generator().manual_seed(seed)
    dim, num = 4, 30
    items = torch.randn(num, dim, generator=generator) / 2
    query = (torch.randn(5, dim, generator=generator) / 2).requires_grad_()
    positive = (torch.randn(5, dim, generator=generator) / 2).requires_grad_()
    weight = (torch.eye(dim) * 1.0).requires_grad_()
    learned = torch.tensor(beta, requires_grad=True)
    more = torch.randn(5, 3, dim, generator=generator) / 2
    leaves = (query, positive, weight, learned)

    def extra_logits():
        return learned * torch.einsum("bd,bkd->bk", query, more @ weight) if extra else None

    logits = learned * torch.cat((query @ (items @ weight).T, (query * positive).sum(1, True)), 1)
    if extra:
        logits = torch.cat((extra_logits(), logits), dim=1)
    exact = torch.autograd.grad((logits.logsumexp(1) - logits[:, -1]).mean(), leaves)
    cache = cache_of(items, seed=seed)
    found = []
    for _ in range(turns):
        draw = cache.sample(query, k, learned, **ESTIMATORS[estimator].draw_options())
        drawn = items[draw.rows] @ weight
        report = cached_softmax(query, positive, drawn, draw, learned, estimator, extra_logits())
        found.append(torch.autograd.grad(report.loss, leaves))
    return exact, [torch.stack(parts) for parts in zip(*found, strict=True)]


@pytest.mark.usefixtures("unchecked_shapes")  # half of the time; other tests here check them
@pytest.mark.parametrize("extra", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_is_unbiased_with_a_fresh_cache(estimator, extra):
    # At least 6,400 draws; shared and systematic draws in fewer turns of more each.
    num, turns = (4, 400) if estimator in FIRST_THREE else (8, 160)
    exact, found = gradients(estimator, num, extra, turns=turns)
    for truth, estimates in zip(exact, found, strict=True):
        mean = estimates.mean(0)
        error = estimates.std(0) / math.sqrt(len(estimates))
        assert ((mean - truth).abs() <= 5 * error + 1e-5).all()


def test_estimators_differ_in_variance_as_they_should():
    spread = {name: [e.var(0).sum().item() for e in gradients(name, 1)[1]] for name in FIRST_THREE}
    query, _, weight, beta = range(4)
    assert spread["weighted"][weight] < spread["sampled"][weight]
    assert spread["control-variate"][query] < 1e-9 + 0.09 * spread["weighted"][query]
    assert spread["control-variate"][beta] < 1e-9 + 0.09 * spread["weighted"][beta]


@pytest.mark.usefixtures("unchecked_shapes")
def test_shared_and_systematic_draws_have_less_variance():
    names = ("weighted", "shared", "systematic", "shared-systematic")
    query, _, weight, beta = range(4)
    spread = {
        name: [e.var(0).sum().item() for e in gradients(name, 4, turns=100)[1]] for name in names
    }
    for part in (query, weight, beta):
        assert spread["systematic"][part] < 0.8 * spread["weighted"][part]
        assert spread["shared-systematic"][part] < 0.6 * spread["shared"][part]
    for part in (query, weight):
        assert spread["shared"][part] < 0.7 * spread["weighted"][part]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("systematic", "precision"), [(False, "float32"), (True, "int8")])
def test_shared_weights_estimate_each_querys_own_softmax(systematic, precision):
    """7,200 draws; items that are masked for one query are drawn by others, and weigh 0 for it."""
    generator = torch.Generator().manual_seed(1)
    items = torch.randn(20, 4, generator=generator)
    queries = torch.randn(6, 4, generator=generator)
    cache = NegativeCache(24, 4, precision=precision, corpus_size=500)
    cache.push({}, items, torch.arange(20), torch.randn(20, generator=generator))
    exclude = torch.tensor([[1, 2], [3, -1], [4, 5], [0, 6], [-1, 77], [9, 9]])
    is_excluded = (exclude.unsqueeze(2) == torch.arange(20)).any(dim=1)
    rounded = queries if precision == "float32" else queries.bfloat16().float()
    stored = cache.items.embeddings_at(torch.arange(20))
    logits = (1.5 * rounded @ stored.T + cache.log_weights[:20]).masked_fill(
        is_excluded, -torch.inf
    )
    found = []
    for _ in range(100):
        draw = cache.sample(queries, 12, 1.5, exclude, with_pairs=True, systematic=systematic)
        weights = shared_weights(draw)
        found.append(torch.zeros(6, 20).index_add_(1, draw.keys.flatten(), weights))
        assert not found[-1][is_excluded].any()
    found = torch.stack(found)
    error = found.std(0) / math.sqrt(len(found))
    z = (found.mean(0) - logits.softmax(1)).abs() / (error + 1e-3 * (precision == "int8") + 1e-7)
    assert z.max() < 5


def test_shared_weights_are_those_of_the_balance_heuristic():
    cache = cache_of([[1.0], [2.0], [3.0]])
    queries = torch.tensor([[0.5], [-1.0]])
    draw = cache.sample(queries, 3, exclude=torch.tensor([0, 2]), with_pairs=True)
    logits = queries @ torch.tensor([[1.0, 2.0, 3.0]])
    logits[0, 0] = logits[1, 2] = -torch.inf
    chances = logits.softmax(dim=1)
    expected = (chances / chances.sum(dim=0) / 3)[:, draw.keys.flatten()]
    torch.testing.assert_close(shared_weights(draw), expected)


def test_a_query_without_items_or_of_nan_takes_nothing_from_the_others():
    cache = cache_of([[1.0], [2.0]])
    queries = torch.tensor([[1.0], [1.0], [torch.nan]])
    exclude = torch.tensor([[-1, -1], [0, 1], [-1, -1]])
    draw = cache.sample(queries, 2, exclude=exclude, with_pairs=True)
    alone = cache.sample(queries[:1], 2, with_pairs=True)
    weights = shared_weights(draw)
    assert not weights[1:].any()
    assert not weights[:, 2:].any()
    torch.testing.assert_close(weights[0, :2], torch.full((2,), 0.5))
    torch.testing.assert_close(shared_weights(alone), torch.full((1, 2), 0.5))


def test_k_draws_have_a_kth_of_the_variance():
    one, four = (gradients("weighted", k)[1][2].var(0).sum().item() for k in (1, 4))
    assert 3.0 < one / four < 5.4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_query_without_negatives_has_no_loss_and_no_gradient(estimator):
    cache = NegativeCache(4, 2, precision="float32")
    query, positive = (torch.randn(3, 2, requires_grad=True) for _ in range(2))
    draw = cache.sample(query, 2, **ESTIMATORS[estimator].draw_options())
    report = cached_softmax(query, positive, torch.randn(3, 2, 2), draw, 20.0, estimator)
    report.loss.backward()
    assert report.losses.tolist() == [0.0, 0.0, 0.0]
    assert query.grad.abs().max() == 0 == positive.grad.abs().max()


def test_huge_scores_do_not_overflow():
    cache = cache_of(torch.tensor([[50.0], [-50.0]]))
    query = torch.tensor([[40.0], [-40.0]], requires_grad=True)
    draw = cache.sample(query, 3, 20.0, with_mean=True, with_pairs=True)
    for estimator in ESTIMATORS:
        report = cached_softmax(query, -query.detach(), draw.embeddings, draw, 20.0, estimator)
        (gradient,) = torch.autograd.grad(report.loss, query)
        assert torch.isfinite(report.losses).all()
        assert torch.isfinite(gradient).all()


def test_an_unknown_estimator_and_a_draw_without_its_mean_are_refused(unchecked_shapes):
    cache = cache_of([[1.0], [2.0]])
    draw = cache.sample(QUERIES, 1)
    with pytest.raises(
        ConfigError, match=r"sampled, control-variate, .*systematic, but got 'exact"
    ):
        cached_softmax(QUERIES, POSITIVES, draw.embeddings, draw, 1.0, "exact")
    with pytest.raises(ConfigError, match="with_mean=True"):
        cached_softmax(QUERIES, POSITIVES, draw.embeddings, draw, 1.0, "control-variate")
    with pytest.raises(ConfigError, match="with_pairs=True"):
        cached_softmax(QUERIES, POSITIVES, draw.embeddings, draw, 1.0, "shared")


def test_in_batch_a_query_meets_every_other_item_once_and_no_right_one():
    keys = torch.tensor([5, 6, 5, 7])
    known = torch.tensor([[7, -1], [-1, -1], [-1, -1], [6, 5]])
    logits = in_batch_logits(torch.ones(4, 2), torch.ones(4, 2), 2.0, keys, known)
    allowed = [[0, 1, 0, 0], [1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0]]
    assert torch.isfinite(logits).int().tolist() == allowed
    assert logits[1, 0] == 4.0


def test_the_other_direction_leaves_out_queries_an_item_is_right_for():
    queries, items = torch.randn(3, 2), torch.randn(3, 2)
    keys, known = torch.tensor([1, 2, 1]), torch.tensor([[-1], [1], [-1]])
    losses = items_to_queries(queries, items, 1.5, keys, known)
    logits = 1.5 * items @ queries.T
    # Item 0 is key 1: right for queries 0 and 2, and known to be right for query 1.
    assert losses[0].item() == pytest.approx(0.0, abs=1e-6)
    expected = torch.logsumexp(logits[1], 0) - logits[1, 1]
    assert losses[1].item() == pytest.approx(expected.item(), rel=1e-5)
