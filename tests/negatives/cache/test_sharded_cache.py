"""A cache that ranks share is drawn from, fed and rewritten as if it were one."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.contracts import Shard
from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.kernels.ragged import Ragged
from outsize.negatives import (
    HeldItems,
    NegativeCache,
    ShardedNegativeCache,
    cached_softmax,
)
from outsize.negatives.cache.shard_draws import DrawRequest
from outsize.ranks.thread_ranks import run_as_ranks

ID = {"id": ((), torch.int64)}


def make(ranks, num_items=12, dim=1, **options):
    options.setdefault("precision", "float32")
    return ShardedNegativeCache(num_items, dim, group=ranks, **options)


def push(cache, keys, value=None):
    """Push items whose embedding and feature say which they are, or `value`."""
    keys = torch.as_tensor(keys, dtype=torch.int64)
    content = keys.float() if value is None else torch.full((len(keys),), float(value))
    own = cache.own if isinstance(cache, ShardedNegativeCache) else cache
    features = {"id": keys} if own.items.shapes else {}
    return cache.push(features, content.unsqueeze(1).expand(-1, cache.dim).clone(), keys)


def held(cache):
    """Key → embedding of what this rank keeps."""
    rows = (cache.own.keys >= 0).nonzero().flatten()
    values = cache.own.items.embeddings_at(rows)[:, 0].tolist()
    return dict(zip(cache.own.keys[rows].tolist(), values, strict=True))


def in_turn(ranks, values):
    """The share of a list that is this rank's."""
    return values[ranks.rank :: ranks.size]


def test_two_shards_give_the_losses_of_the_public_code():
    def losses(ranks):
        cache = make(ranks, 4)
        sign = 1.0 if ranks.rank == 0 else -1.0
        keys = torch.tensor([0, 2]) + ranks.rank
        cache.push({}, torch.tensor([[sign], [2 * sign]]), keys)
        query, positive = torch.tensor([[-sign]]), torch.tensor([[2.0]])
        draw = cache.sample(query, num=1)
        return cached_softmax(query, positive, draw.embeddings, draw).losses.item()

    found = run_as_ranks(2, losses)
    assert found == pytest.approx([4.37452, 0.890350], abs=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_partitions_and_means_are_those_of_one_cache(size, precision):
    items = torch.randn(20, 4)
    weights = torch.randn(20)
    queries = torch.randn(9, 4)
    lists = torch.randint(-1, 25, (9, 3))
    bounds = {1: [0, 9], 2: [0, 2, 9], 3: [0, 6, 6, 9]}[size]  # the second of three has none
    everywhere = [torch.tensor([3, 4, 77]), None, torch.tensor([11])]
    one = NegativeCache(20, 4, precision=precision, corpus_size=900)
    one.push({}, items, torch.arange(20), weights)

    def work(ranks):
        cache = make(ranks, 20, 4, precision=precision, corpus_size=900)
        keys = torch.arange(20).flip(0)[ranks.rank :: ranks.size]
        cache.push({}, items[keys], keys, weights[keys])
        assert cache.num_held == 20
        assert cache.alpha == pytest.approx(20 / 900)
        mine = slice(bounds[ranks.rank], bounds[ranks.rank + 1])
        num = 0
        for excluded in (None, everywhere[ranks.rank]):
            given = (queries[mine], 2, 1.5, lists[mine], excluded)
            draw, expected = cache.sample(*given, True), one.sample(*given, True)
            torch.testing.assert_close(draw.log_partition, expected.log_partition)
            torch.testing.assert_close(draw.mean_embedding, expected.mean_embedding)
            num = len(draw.keys)
        return num

    assert sum(run_as_ranks(size, work)) == 9


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize("size", [2, 3])
def test_the_draws_are_those_of_softmax(size):
    items = torch.randn(12, 4)
    queries = torch.randn(3, 4)

    def draw(ranks):
        cache = make(ranks, 12, 4, seed=7)
        keys = torch.arange(12)[ranks.rank :: size]
        cache.push({}, items[keys], keys)
        return cache.sample(queries[ranks.rank].unsqueeze(0), num=40_000, beta=1.5)

    for rank, drawn in enumerate(run_as_ranks(size, draw)):
        logits = 1.5 * queries[rank] @ items.T
        expected = logits.softmax(0)
        keys = drawn.keys.flatten()
        # 11 and 143 degrees of freedom: exceeded once in 10⁶
        assert chi_square(torch.bincount(keys, minlength=12), 40_000 * expected) < 50
        pairs = keys[::2] * 12 + keys[1::2]
        both = torch.outer(expected, expected).flatten() * 20_000
        common = both > 3
        assert chi_square(torch.bincount(pairs, minlength=144)[common], both[common]) < 235
        torch.testing.assert_close(drawn.logits.flatten(), logits[keys])
        torch.testing.assert_close(drawn.embeddings[0], items[keys])


def test_an_excluded_item_with_all_of_the_mass_takes_nothing_with_it():
    def draw(ranks):
        cache = make(ranks, 3)
        cache.push({}, torch.tensor([[100.0], [0.0], [math.log(3)]]), torch.arange(3))
        return cache.sample(torch.ones(1, 1), num=20_000, exclude=torch.tensor([0]))

    for drawn in run_as_ranks(2, draw):
        assert drawn.log_partition.item() == pytest.approx(math.log(4), rel=1e-5)
        assert (drawn.keys == 2).float().mean().item() == pytest.approx(0.75, abs=0.02)
        assert set(drawn.keys.flatten().tolist()) == {1, 2}


def test_items_excluded_for_all_queries_of_one_rank_count_for_the_other():
    def draw(ranks):
        cache = make(ranks, 4)
        push(cache, [0, 1, 2, 3] if ranks.rank else [], value=0)
        excluded = torch.tensor([0, 1, 2]) if ranks.rank else None
        return cache.sample(torch.ones(2, 1), 200, exclude_everywhere=excluded)

    first, second = run_as_ranks(2, draw)
    assert set(first.keys.flatten().tolist()) == {0, 1, 2, 3}
    assert set(second.keys.flatten().tolist()) == {3}


def test_an_empty_cache_and_an_all_masked_query_draw_nothing():
    def draw(ranks):
        empty = make(ranks, 4, features={"id": ((3,), torch.int64)})
        nothing = empty.sample(torch.ones(2, 1), 3, with_mean=True)
        cache = make(ranks, 2)
        push(cache, [0, 1])
        lists = torch.tensor([[0, 1], [0, -1]])
        return nothing, cache.sample(torch.ones(2, 1), 2, exclude=lists, with_mean=True)

    for nothing, masked in run_as_ranks(2, draw):
        assert (nothing.rows == -1).all()
        assert (nothing.keys == -1).all()
        assert (nothing.log_partition == -torch.inf).all()
        assert nothing.features["id"].shape == (2, 3, 3)
        assert nothing.mean_embedding.abs().max() == 0
        assert masked.keys.tolist() == [[-1, -1], [1, 1]]
        assert masked.log_partition[0] == -torch.inf
        assert masked.mean_embedding[:, 0].tolist() == [0, 1]


def test_a_query_that_is_not_a_number_draws_nothing_and_spoils_no_other():
    def draw(ranks):
        cache = make(ranks, 4)
        push(cache, in_turn(ranks, [0, 1, 2, 3]), value=1)
        query = torch.tensor([[1.0], [torch.nan]]) if ranks.rank else torch.ones(1, 1)
        return cache.sample(query, 5)

    first, second = run_as_ranks(2, draw)
    assert first.log_partition.item() == pytest.approx(math.log(4 * math.e))
    assert (second.rows[1] == -1).all()
    assert (second.rows[0] >= 0).all()


def test_ranks_draw_differently_and_from_call_to_call():
    def draw(ranks):
        cache = make(ranks, 60, 3, seed=2)
        push(cache, in_turn(ranks, list(range(60))))
        draws = [cache.sample(torch.zeros(2, 3), 8) for _ in range(2)]
        return [(d.keys.tolist(), (d.keys % 2).tolist(), d.uniforms.tolist()) for d in draws]

    found = run_as_ranks(2, draw)
    for kind in zip(*(draws for rank in found for draws in rank), strict=True):
        assert len({str(values) for values in kind}) == 4  # keys, their owners and dice
    assert run_as_ranks(2, draw) == found


def test_a_draw_brings_what_owners_know_of_items_of_every_type():
    kinds = {"tokens": ((3,), torch.int32), "short": ((2,), torch.uint16), "flag": ((), torch.bool)}

    def work(ranks):
        cache = make(ranks, 6, 2, features=kinds, precision="int8")
        keys = torch.tensor(in_turn(ranks, [4, 2, 3, 1, 0]))
        given = {
            "flag": keys % 2 == 0,
            "tokens": (keys.unsqueeze(1) * torch.ones(3)).int(),
            "short": (keys.unsqueeze(1) + torch.tensor([0, 60_000])).to(torch.uint16),
        }
        cache.push(given, keys.unsqueeze(1) * torch.tensor([1.0, -0.5]), keys)
        cache.commit()
        cache.commit()
        draw = cache.sample(torch.zeros(4, 2), 9)
        assert (draw.ages == 2).all()
        assert set(draw.keys.flatten().tolist()) == {0, 1, 2, 3, 4}
        assert torch.equal(draw.features["tokens"], draw.keys.unsqueeze(2).expand(-1, -1, 3).int())
        assert draw.features["short"].dtype == torch.uint16
        assert torch.equal(draw.features["short"][..., 1].int(), draw.keys.int() + 60_000)
        assert torch.equal(draw.features["flag"], draw.keys % 2 == 0)
        torch.testing.assert_close(draw.embeddings[..., 0], draw.keys.float())
        assert torch.equal(draw.rows // cache.num_items_here, draw.keys % ranks.size)

    run_as_ranks(3, work)


def test_items_go_to_their_owners_and_reports_are_of_all_ranks():
    def work(ranks):
        cache = make(ranks, 8)
        first = push(cache, [0, 1, 2, 3, 5] if ranks.rank == 0 else [])
        second = push(cache, [5, 6, 6] if ranks.rank else [5, 7], value=10 + ranks.rank)
        return first, second, cache.num_held, cache.num_held_here, held(cache)

    one, other = run_as_ranks(2, work)
    for first, second, num_held, *_ in (one, other):
        assert (first.num_new, first.num_known, first.num_repeated) == (5, 0, 0)
        assert (second.num_new, second.num_known, second.num_repeated) == (2, 1, 2)
        assert num_held == 7
    assert one[4] == {0: 0, 2: 2, 6: 11}
    assert other[4] == {1: 1, 3: 3, 5: 11, 7: 10}  # of 5 the higher rank's counts
    assert (one[3], other[3]) == (3, 4)


def test_drawn_items_are_rewritten_at_home_and_the_clock_ticks_once():
    def work(ranks):
        cache = make(ranks, 6)
        push(cache, in_turn(ranks, list(range(6))), value=0)
        draw = cache.sample(torch.zeros(1 + ranks.rank, 1), 40)
        drawn = torch.full((1 + ranks.rank, 40, 1), 5.0 + ranks.rank)
        drawn[-1, -1] += 10  # of several encodings of one item, the last counts
        cache.commit(draw, drawn)
        return held(cache), draw.keys[-1, -1].item(), cache.clock, cache.ages().tolist()

    one, other = run_as_ranks(2, work)
    found = one[0] | other[0]
    assert found == {k: 16.0 if k == other[1] else 6.0 for k in range(6)}
    assert one[2] == other[2] == 1
    assert one[3] == other[3] == [0, 0, 0]


def test_a_row_given_to_another_item_is_not_rewritten():
    def work(ranks):
        cache = make(ranks, 2)
        push(cache, [0, 1] if ranks.rank else [])
        draw = cache.sample(torch.zeros(1, 1), 30)
        push(cache, [2] if ranks.rank else [])
        cache.commit(draw, torch.full((1, 30, 1), 9.0))
        return held(cache)

    assert run_as_ranks(2, work) == [{2: 2.0}, {1: 9.0}]


def test_a_rank_without_a_batch_takes_part_in_everything():
    def work(ranks):
        cache = make(ranks, 6, features=ID)
        push(cache, [0, 1, 2, 3] if ranks.rank == 1 else [])
        num = 3 * (ranks.rank == 2)
        draw = cache.sample(torch.zeros(num, 1), 4, exclude=torch.zeros(num, dtype=torch.int64))
        assert draw.keys.shape == (num, 4)
        assert draw.features["id"].shape == (num, 4)
        if ranks.rank == 0:
            cache.commit()
        else:
            cache.commit(draw, torch.full((num, 4, 1), 7.0))
        return set(held(cache).items()), draw.keys.unique().tolist()

    found = run_as_ranks(3, work)
    values = dict(set.union(*(items for items, _ in found)))
    assert values == {k: 7.0 if k in found[2][1] else float(k) for k in range(4)}


def test_each_rank_sweeps_the_oldest_of_its_own():
    def work(ranks):
        cache = make(ranks, 6, features=ID)
        push(cache, in_turn(ranks, list(range(6))))
        seen = []
        for turn in range(3):
            cache.commit()
            due = cache.oldest(1)
            assert torch.equal(due.features["id"], due.keys)
            cache.rewrite(due, torch.full((1, 1), 50.0 + turn))
            seen += due.keys.tolist()
        return seen, held(cache)

    (first, one), (second, other) = run_as_ranks(2, work)
    assert (first, second) == ([0, 2, 4], [1, 3, 5])
    assert one == {0: 50, 2: 51, 4: 52}
    assert other == {1: 50, 3: 51, 5: 52}


def test_what_one_rank_cannot_push_is_refused_by_all_and_nothing_is_written():
    def work(ranks):
        cache = make(ranks, 4)
        push(cache, [0, 1])
        draw = cache.sample(torch.zeros(1, 1), 2)
        bad = torch.full((1, 2, 1), torch.nan if ranks.rank else 3.0)
        words = []
        for call in (
            lambda: push(cache, [2, 3], value=math.inf if ranks.rank else 1),
            lambda: cache.rewrite(draw.items(), bad.flatten(0, 1)),
        ):
            with pytest.raises(NonFiniteError if ranks.rank else DataError) as caught:
                call()
            words.append(str(caught.value))
        assert held(cache) == {ranks.rank: ranks.rank}
        assert push(cache, [2]).num_new == 1  # and all go on together
        return words

    one, other = run_as_ranks(2, work)
    assert one == ["rank 1 has items that cannot be stored: nothing was written"] * 2
    assert all("NaN or infinite" in word for word in other)


def test_ranks_that_do_not_ask_for_the_same_are_told_so():
    def work(ranks):
        with pytest.raises(DataError) as caught:
            make(ranks, 4).sample(torch.zeros(1, 1), 1 + ranks.rank)
        return str(caught.value)

    words = run_as_ranks(2, work)
    assert words[0] == (
        "rank 1 draws 2 items per query, with_mean=False, systematic=False, but rank 0 draws 1, "
        "with_mean=False, systematic=False: all must agree"
    )


def test_what_a_rank_keeps_is_hidden_from_ddp_and_state_dicts_but_not_from_moves():
    cache = ShardedNegativeCache(8, 2, ID)
    module = torch.nn.ModuleDict({"cache": cache})
    assert list(module.buffers()) == list(module.parameters()) == list(module.state_dict()) == []
    assert cache.memory_use().total_bytes == cache.own.memory_use().total_bytes > 0
    module.half()
    assert cache.own.items.vectors.dtype == torch.bfloat16
    module.to("meta")
    assert cache.device.type == "meta"


EVENTS = st.lists(
    st.one_of(
        st.lists(st.lists(st.integers(0, 20), max_size=6), min_size=3, max_size=3),
        st.tuples(st.lists(st.integers(0, 11), max_size=4), st.integers(0, 2)),
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.sampled_from(["fifo", "lru"]), st.integers(1, 8), EVENTS)
def test_shards_equal_caches_that_get_what_they_own_rank_by_rank(size, eviction, num, events):
    rows = -(-num // size)

    def work(ranks):
        cache = make(ranks, num, features=ID, eviction=eviction)
        oracle = NegativeCache(rows, 1, ID, precision="float32", eviction=eviction)
        for turn, event in enumerate(events):
            if isinstance(event, list):
                push(cache, event[ranks.rank], value=100 * turn + ranks.rank)
                keys = torch.tensor([k for part in event[:size] for k in part], dtype=torch.int64)
                values = [100.0 * turn + r for r, part in enumerate(event[:size]) for _ in part]
                own = keys % size == ranks.rank
                given = torch.tensor(values).view(-1, 1)[own]
                oracle.push({"id": keys[own]}, given, keys[own])
            else:
                places, by = event
                everyone = ranks.swap_counts(oracle.keys.repeat(size, 1)).flatten()
                places = [p for p in places if p < len(everyone) and everyone[p] >= 0]
                rewritten = torch.tensor(places, dtype=torch.int64)
                items = HeldItems(rewritten, everyone[rewritten], {})
                nothing = HeldItems(rewritten[:0], rewritten[:0], {})
                cache.commit()
                cache.rewrite(
                    items if by % size == ranks.rank else nothing,
                    torch.full((len(places) * (by % size == ranks.rank), 1), -1.0 - turn),
                )
                oracle.commit()
                if eviction == "lru":  # a commit without a draw is a rewrite of nothing here
                    oracle.rewrite(nothing, torch.empty(0, 1))
                own = rewritten[rewritten // rows == ranks.rank] - ranks.rank * rows
                oracle.rewrite(
                    HeldItems(own, oracle.keys[own], {}), torch.full((len(own), 1), -1.0 - turn)
                )
            assert torch.equal(cache.own.keys, oracle.keys)
            assert torch.equal(cache.own.items.vectors, oracle.items.vectors)
            assert torch.equal(cache.own.stamps, oracle.stamps)
            assert torch.equal(cache.own.encoded_at, oracle.encoded_at)
        return cache.num_held, oracle.num_held

    found = run_as_ranks(size, work)
    assert {total for total, _ in found} == {sum(own for _, own in found)}


@pytest.mark.gpu
def test_shards_on_a_device_draw_and_rewrite_there():
    items = torch.randn(20, 8)

    def work(ranks):
        cache = make(ranks, 20, 8, precision="bfloat16", features=ID).cuda()
        keys = torch.arange(ranks.rank, 20, ranks.size)
        cache.push({"id": keys.cuda()}, items[keys].cuda(), keys.cuda())
        queries = torch.randn(3 * ranks.rank, 8, device="cuda")
        draw = cache.sample(queries, 5, exclude=torch.arange(len(queries)).cuda(), with_mean=True)
        assert draw.embeddings.is_cuda
        assert torch.equal(draw.features["id"], draw.keys)
        logits = queries.bfloat16().float() @ items.bfloat16().float().cuda().T
        logits[torch.arange(len(queries)), torch.arange(len(queries))] = -torch.inf
        torch.testing.assert_close(draw.log_partition, logits.logsumexp(1), atol=1e-3, rtol=1e-3)
        cache.commit(draw, torch.zeros(len(queries), 5, 8, device="cuda"))
        assert (cache.own.keys >= 0).sum() == len(keys)
        return cache.num_held

    assert run_as_ranks(2, work) == [20, 20]


def test_a_shard_is_asked_about_its_own_keys_only():
    lists = Ragged.of(torch.tensor([[0, 1, 2], [3, -1, 5]]))
    request = DrawRequest(torch.ones(2, 1), lists, torch.tensor([9]))
    for index, expected in ((0, ([0, 2], [2, 0])), (1, ([1, 3, 5], [1, 2]))):
        _, values, sizes, everywhere = request.tensors(torch.float32, Shard(index, 2))
        assert (values.tolist(), sizes.tolist(), everywhere.tolist()) == (*expected, [9])
    assert request.tensors(torch.bfloat16, Shard())[0].dtype == torch.bfloat16


def test_what_was_not_drawn_has_no_key_and_no_age():
    def fetch(ranks):
        cache = make(ranks)
        push(cache, [ranks.rank])
        cache.commit()
        keys, ages, _ = cache.found_at(torch.tensor([0, -1]))
        return keys.tolist(), ages.tolist()

    assert run_as_ranks(2, fetch) == [([0, -1], [1, 0])] * 2


def test_an_item_that_moved_to_another_row_keeps_its_newer_embedding():
    def move(ranks):
        cache = make(ranks, 2)
        push(cache, [0])
        push(cache, [1])
        draw = cache.sample(torch.zeros(1, 1), num=30)
        push(cache, [2])  # in the row of 0
        push(cache, [0], value=5)  # in the row of 1
        cache.commit(draw, torch.full((1, 30, 1), 7.0))
        return held(cache)

    assert run_as_ranks(1, move) == [{2: 2.0, 0: 5.0}]


def test_half_a_commit_is_refused_on_all_ranks():
    def commit(ranks):
        cache = make(ranks)
        push(cache, [ranks.rank])
        given = {"keys": torch.tensor([0])} if ranks.rank == 0 else {}
        with pytest.raises((ConfigError, DataError)) as caught:
            cache.commit(**given)
        return str(caught.value), cache.own.clock

    (first, clock), (second, other) = run_as_ranks(2, commit)
    assert "commit needs keys and embeddings together" in first
    assert "rank 0 has items that cannot be stored" in second
    assert clock == other == 0


def test_new_weights_apply_on_all_shards():
    def reweigh(ranks):
        cache = make(ranks)
        push(cache, [ranks.rank, ranks.rank + 2])
        cache.reweigh(lambda keys: keys.float())
        return cache.own.log_weights[:2].tolist()

    assert run_as_ranks(2, reweigh) == [[0.0, 2.0], [1.0, 3.0]]


def test_the_mean_of_a_query_without_items_is_zero():
    def draw(ranks):
        cache = make(ranks, dim=2)
        push(cache, [ranks.rank])
        lists = torch.tensor([[0, 1], [0, -1]])
        found = cache.sample(torch.ones(2, 2), num=3, exclude=lists, with_mean=True)
        return found.mean_embedding.tolist(), found.logits.shape

    for mean, shape in run_as_ranks(2, draw):
        assert mean == [[0.0, 0.0], [1.0, 1.0]]
        assert shape == (2, 3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_systematic_draws_over_shards_follow_the_softmax_and_repeat_little(size):
    items = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
    query = torch.randn(1, 4, generator=torch.Generator().manual_seed(3)).expand(400, -1)
    chances = torch.softmax(1.5 * query[0] @ items.T, dim=0).double()

    def work(ranks):
        cache = ShardedNegativeCache(42, 4, precision="float32", group=ranks)
        mine = torch.arange(ranks.rank, 40, ranks.size)
        cache.push({}, items[mine], mine)
        systematic = cache.sample(query, 12, 1.5, systematic=True).keys
        return systematic, cache.sample(query, 12, 1.5).keys

    for systematic, independent in run_as_ranks(size, work):
        counts, others = (
            torch.nn.functional.one_hot(keys, 40).sum(dim=1).double()
            for keys in (systematic, independent)
        )
        error = counts.std(0) / math.sqrt(400) + 1e-9
        assert ((counts.mean(0) - 12 * chances).abs() / error)[chances > 0.01].max() < 5
        assert counts.var(0).sum() < 0.8 * others.var(0).sum()


def test_shared_weights_of_a_sharded_cache_are_those_of_one_cache():
    items, queries = torch.randn(17, 4), torch.randn(3, 4)
    exclude = torch.tensor([[1, 2], [3, -1], [-1, -1]])

    def work(ranks):
        cache = ShardedNegativeCache(18, 4, precision="float32", group=ranks, corpus_size=100)
        mine = torch.arange(ranks.rank, 17, ranks.size)
        cache.push({}, items[mine], mine, torch.linspace(0, 1, 17)[mine])
        draw = cache.sample(queries, 5, 2.0, exclude, with_pairs=True)
        logits = 2.0 * queries @ items.T + torch.linspace(0, 1, 17) + math.log(100 / 17)
        for line, keys in enumerate(exclude.tolist()):
            logits[line, [key for key in keys if key >= 0]] = -torch.inf
        torch.testing.assert_close(draw.pair_logits, logits[:, draw.keys.flatten()])

    run_as_ranks(2, work)
