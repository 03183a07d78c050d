"""`sample` by a few kernels on CUDA, beside the same cache without them."""

import pytest
import torch
from draw_checks import assert_drawn_from, assert_independent, no_waiting

from outsize.kernels.ragged import Ragged
from outsize.negatives import NegativeCache

pytestmark = pytest.mark.gpu
NUM_ITEMS, DIM = 5000, 24
WAYS = {
    "positives": torch.randint(NUM_ITEMS, (40,)),
    "matrix": torch.randint(-1, 2 * NUM_ITEMS, (40, 5)),
    "wide matrix": torch.randint(-1, 2 * NUM_ITEMS, (40, 90)),
    "lists": Ragged.from_sizes(torch.randint(NUM_ITEMS, (780,)), torch.arange(40)),
    "nothing": None,
}


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def cache(request):
    features = {"ids": ((3,), torch.int32), "number": ((), torch.int64)}
    cache = NegativeCache(NUM_ITEMS + 100, DIM, features, request.param, corpus_size=NUM_ITEMS * 2)
    for keys in torch.randperm(NUM_ITEMS).split(900):
        ids = keys.int().unsqueeze(1).expand(-1, 3)
        cache.push({"ids": ids, "number": 2 * keys}, torch.randn(len(keys), DIM), keys)
        cache.tick()
    return cache.cuda()


def on_gpu(exclude):
    if isinstance(exclude, Ragged):
        return Ragged(exclude.values.cuda(), exclude.offsets.cuda())
    return None if exclude is None else exclude.cuda()


@pytest.mark.parametrize("systematic", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_draw_says_what_the_cache_holds(cache, way, systematic, monkeypatch):
    queries, beta = torch.randn(40, DIM).cuda(), torch.tensor(0.5).cuda()
    options = {"beta": beta, "exclude": on_gpu(WAYS[way]), "systematic": systematic}
    draw = cache.sample(queries, 8, **options, with_mean=True, with_pairs=True, advance=False)
    assert (draw.rows >= 0).all()
    assert torch.equal(cache.keys[draw.rows], draw.keys)
    assert torch.equal(cache.clock - cache.encoded_at[draw.rows], draw.ages)
    assert torch.equal(draw.features["number"], 2 * draw.keys)
    assert torch.equal(draw.features["ids"], draw.keys.int().unsqueeze(2).expand(-1, -1, 3))
    held = cache.items.embeddings_at(draw.rows.flatten()).view_as(draw.embeddings)
    assert torch.equal(draw.embeddings, held)
    assert ((draw.uniforms >= 0) & (draw.uniforms < 1)).all()
    scores = (queries.double().unsqueeze(1) * 0.5 * held.double()).sum(2) + cache.log_weight()
    torch.testing.assert_close(draw.logits.double(), scores, atol=0.03, rtol=0.01)  # rounded
    own = torch.arange(40).cuda().unsqueeze(1) * 8 + torch.arange(8).cuda()
    torch.testing.assert_close(draw.pair_logits.gather(1, own), draw.logits, atol=1e-4, rtol=1e-5)
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    plain = cache.sample(queries, 8, **options, with_mean=True, advance=False)
    torch.testing.assert_close(draw.log_partition, plain.log_partition, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(draw.mean_embedding, plain.mean_embedding, atol=1e-4, rtol=1e-3)


def test_excluded_keys_are_never_drawn(cache):
    exclude = torch.arange(NUM_ITEMS).view(-1, 1250)[:, :1249].cuda()
    draw = cache.sample(torch.randn(4, DIM).cuda(), 400, exclude=exclude)
    for line in range(4):
        assert not torch.isin(draw.keys[line], exclude[line]).any()
    positives = draw.keys[:, 0].clone()
    again = cache.sample(torch.randn(4, DIM).cuda(), 400, exclude=positives)
    assert (again.keys != positives.unsqueeze(1)).all()


def logits_of_rows(cache, queries):
    """The logits of all rows in float64; −inf for empty ones."""
    rows = torch.arange(len(cache.keys)).cuda()
    rounded = queries if cache.items.precision == "float32" else queries.bfloat16()
    scores = rounded.double() @ cache.items.embeddings_at(rows).double().t()
    return scores.masked_fill(cache.keys < 0, -torch.inf)


@pytest.mark.parametrize("systematic", [False, True])
def test_draws_are_from_the_softmax_over_what_is_held_and_not_excluded(cache, systematic):
    queries = torch.randn(3, DIM).cuda() / 2
    logits = logits_of_rows(cache, queries)
    exclude = cache.keys[logits.topk(2).indices]  # the likeliest, so that it matters
    logits[cache.keys == exclude[:, :1]] = -torch.inf
    logits[cache.keys == exclude[:, 1:]] = -torch.inf
    if systematic:  # one draw of each of many equal queries: those of one query repeat too little
        rows = torch.stack(
            [
                cache.sample(
                    query.expand(20_000, -1), 1, 1.0, keys.expand(20_000, -1), systematic=True
                ).rows.flatten()
                for query, keys in zip(queries, exclude, strict=True)
            ]
        )
    else:
        rows = cache.sample(queries, 20_000, 1.0, exclude).rows
    for line, expected in zip(rows.cpu(), logits.cpu(), strict=True):
        assert_drawn_from(line, expected)
        assert_independent(line[0::2], line[1::2])


@pytest.mark.parametrize("way", ["positives", "matrix", "wide matrix", "nothing"])
def test_a_gpu_is_never_waited_for(cache, way):
    queries, exclude = torch.randn(40, DIM).cuda(), on_gpu(WAYS[way])
    beta = torch.tensor(0.5).cuda()
    for _ in range(2):  # the first time kernels are compiled
        cache.sample(queries, 4, beta, exclude, with_mean=True)
    with no_waiting():
        cache.sample(queries, 4, beta, exclude)
        cache.sample(queries, 4, 20.0, exclude, with_mean=True)
        cache.sample(queries, 4, 20.0, exclude, systematic=True)


def test_the_same_seed_draws_the_same_and_the_next_draw_is_another(cache):
    queries = torch.randn(40, DIM).cuda()
    once = cache.sample(queries, 8, advance=False)
    assert torch.equal(once.rows, cache.sample(queries, 8, advance=False).rows)
    cache.sample(queries, 8)
    assert not torch.equal(once.rows, cache.sample(queries, 8, advance=False).rows)
