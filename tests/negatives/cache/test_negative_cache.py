"""What a cache holds after pushes, rewrites and commits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from outsize.errors import ConfigError, DataError, NonFiniteError
from outsize.negatives import HeldItems, NegativeCache
from outsize.negatives.cache.key_index import positions_by_table


def push(cache, keys, value=None):
    """Push items whose embedding and feature say which they are, or `value`."""
    keys = torch.as_tensor(keys)
    content = keys.float() if value is None else torch.full((len(keys),), float(value))
    features = {"id": keys} if cache.items.shapes else {}
    return cache.push(features, content.unsqueeze(1).expand(-1, cache.dim).clone(), keys)


def make(num_items=4, dim=2, **options):
    options.setdefault("features", {"id": ((), torch.int64)})
    return NegativeCache(num_items, dim, precision=options.pop("precision", "float32"), **options)


def ages(cache):
    return torch.where(cache.keys >= 0, cache.clock - cache.encoded_at, -1).tolist()


def test_new_items_take_empty_rows_first():
    cache = make(4)
    push(cache, [10, 11])
    assert cache.keys.tolist() == [10, 11, -1, -1]
    assert cache.num_held == 2
    cache.commit()
    push(cache, [12])
    assert cache.keys.tolist() == [10, 11, 12, -1]
    assert ages(cache) == [1, 1, 0, -1]


def test_two_pushes_of_two_into_three_rows_leave_the_second_oldest():
    cache = make(3)
    push(cache, [0, 1])
    cache.commit()
    push(cache, [2, 3])
    assert cache.keys.tolist() == [3, 1, 2]  # the empty row first, then the lowest of the oldest
    assert ages(cache) == [0, 1, 0]


def test_a_cache_of_four_after_one_push_of_two_has_two_fresh_rows():
    cache = make(4)
    push(cache, [0, 1])
    assert ages(cache) == [0, 0, -1, -1]


@pytest.mark.parametrize(("eviction", "left"), [("fifo", [2, 3]), ("lru", [0, 3])])
def test_a_rewritten_item_stays_only_under_lru(eviction, left):
    cache = make(2, eviction=eviction)
    push(cache, [0])
    push(cache, [2])
    cache.rewrite(cache.held(torch.tensor([0])), torch.tensor([[5.0, 5.0]]))
    assert cache.items.embeddings_at(torch.tensor([0])).tolist() == [[5.0, 5.0]]
    push(cache, [3])
    assert sorted(cache.keys.tolist()) == left


def test_a_rewritten_item_is_not_displaced_in_the_same_step_under_lru():
    cache = make(3, eviction="lru")
    push(cache, [0, 1, 2])
    cache.rewrite(cache.held(torch.tensor([0])), torch.zeros(1, 2))
    cache.commit()
    push(cache, [7, 8])
    assert cache.keys.tolist() == [0, 7, 8]


def test_a_held_item_is_rewritten_where_it_is():
    cache = make(3)
    push(cache, [0, 1, 2])
    cache.commit()
    report = push(cache, [1, 1, 9], value=7)
    assert (report.num_new, report.num_known, report.num_repeated) == (1, 1, 1)
    assert cache.keys.tolist() == [9, 1, 2]
    assert cache.items.vectors[:, 0].tolist() == [7, 7, 2]
    assert ages(cache) == [0, 0, 1]


def test_of_an_item_pushed_twice_in_one_call_the_last_counts():
    cache = make(2)
    cache.push(
        {"id": torch.tensor([5, 5])}, torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([5, 5])
    )
    assert cache.num_held == 1
    assert cache.items.vectors[0].tolist() == [2.0, 2.0]


def test_more_items_than_there_are_rows_leave_the_last_ones():
    cache = make(3)
    report = push(cache, list(range(10)))
    assert sorted(cache.keys.tolist()) == [7, 8, 9]
    assert (report.num_new, report.num_repeated) == (3, 7)


def test_a_known_item_may_lose_its_row_to_a_new_one_of_the_same_push():
    cache = make(2)
    push(cache, [0])
    push(cache, [1])
    push(cache, [0, 5, 6])
    assert sorted(cache.keys.tolist()) == [5, 6]
    assert sorted(cache.items.feature_id.tolist()) == [5, 6]
    assert cache.rows_of(torch.tensor([0, 1])).tolist() == [-1, -1]


def test_a_row_given_to_another_item_is_not_rewritten():
    cache = make(1)
    push(cache, [0])
    held = cache.held(torch.tensor([0]))
    push(cache, [1])
    cache.rewrite(held, torch.full((1, 2), 9.0))
    assert cache.items.vectors[0].tolist() == [1.0, 1.0]


def test_of_several_encodings_of_one_item_the_last_is_kept():
    cache = make(2)
    push(cache, [0, 1])
    rows = torch.tensor([1, 0, 1, -1])
    items = HeldItems(rows, torch.tensor([1, 0, 1, -1]), {})
    cache.rewrite(items, torch.arange(4.0).unsqueeze(1).expand(-1, 2))
    assert cache.items.vectors[:, 0].tolist() == [1.0, 2.0]


def test_the_oldest_are_those_encoded_longest_ago_and_never_empty_rows():
    cache = make(5)
    push(cache, [0, 1, 2])
    cache.commit()
    push(cache, [3])
    cache.rewrite(cache.held(torch.tensor([0])), torch.zeros(1, 2))
    assert cache.oldest(2).keys.tolist() == [1, 2]
    assert cache.oldest(9).keys.tolist() == [1, 2, 0, 3]


def test_a_sweep_of_the_oldest_reaches_every_item_in_turn():
    cache = make(10)
    push(cache, list(range(10)))
    seen = []
    for _ in range(4):
        cache.commit()
        items = cache.oldest(5)
        cache.rewrite(items, torch.zeros(5, 2))
        seen.append(set(items.keys.tolist()))
    assert seen[0] | seen[1] == seen[2] | seen[3] == set(range(10))
    assert seen[0] == seen[2]


def test_an_item_rewritten_in_a_push_goes_after_one_that_entered_with_it_in_a_lower_row():
    cache = make(2, eviction="lru")
    push(cache, [2, 0])
    push(cache, [0, 1, 3])
    assert cache.keys.tolist() == [1, 3]
    push(cache, [0])
    assert cache.keys.tolist() == [0, 3]


class Oracle:
    """The same cache as a list of dicts."""

    def __init__(self, num_items, eviction):
        self.rows = [None] * num_items
        self.eviction = eviction
        self.time = self.clock = 0

    def push(self, keys, value):
        keys = [k for i, k in enumerate(keys) if k not in keys[i + 1 :]]
        known = [k for k in keys if any(r and r["key"] == k for r in self.rows)]
        new = [k for k in keys if k not in known][-len(self.rows) :]
        self.time += 1
        for row in self.rows:
            if row and row["key"] in known:
                row |= {"value": value, "encoded": self.clock}
                if self.eviction == "lru":
                    row["stamp"] = self.time
        order = sorted(
            range(len(self.rows)), key=lambda i: (self.rows[i]["stamp"] if self.rows[i] else -1, i)
        )
        for place, key in zip(order, new, strict=False):
            self.rows[place] = {
                "key": key,
                "value": value,
                "encoded": self.clock,
                "stamp": self.time,
            }

    def rewrite(self, places, value):
        self.time += self.eviction == "lru"
        for place in places:
            if self.rows[place]:
                self.rows[place] |= {"value": value, "encoded": self.clock}
                if self.eviction == "lru":
                    self.rows[place]["stamp"] = self.time


@given(
    st.integers(1, 7),
    st.sampled_from(["fifo", "lru"]),
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 12), max_size=9),
            st.tuples(st.just("rewrite"), st.lists(st.integers(0, 6), max_size=4)),
            st.just("commit"),
        ),
        max_size=12,
    ),
)
def test_a_cache_equals_a_list_of_dicts(num_items, eviction, events):
    cache, oracle = make(num_items, 1, eviction=eviction), Oracle(num_items, eviction)
    for value, event in enumerate(events):
        if event == "commit":
            cache.commit()
            oracle.clock += 1
        elif isinstance(event, tuple):
            rows = torch.tensor([r for r in event[1] if r < num_items], dtype=torch.int64)
            held = rows[cache.keys[rows] >= 0]
            cache.rewrite(cache.held(held), torch.full((len(held), 1), float(value)))
            oracle.rewrite(held.tolist(), value)
        else:
            push(cache, torch.tensor(event, dtype=torch.int64), value)
            oracle.push(event, value)
        assert cache.keys.tolist() == [r["key"] if r else -1 for r in oracle.rows]
        valid = [i for i, r in enumerate(oracle.rows) if r]
        assert cache.items.vectors[valid, 0].tolist() == [oracle.rows[i]["value"] for i in valid]
        assert cache.encoded_at[valid].tolist() == [oracle.rows[i]["encoded"] for i in valid]
        assert cache.items.feature_id[valid].tolist() == [oracle.rows[i]["key"] for i in valid]
        everything = torch.arange(13)
        rows = cache.rows_of(everything).tolist()
        assert rows == [
            next((i for i in valid if oracle.rows[i]["key"] == k), -1) for k in range(13)
        ]
        by_age = sorted(valid, key=lambda i: (oracle.rows[i]["encoded"], i))
        assert cache.oldest(3).rows.tolist() == by_age[:3]


def test_keys_are_found_after_the_index_has_grown_many_times():
    cache = make(20_000, 1, features={})
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        keys = torch.randint(1 << 40, (3000,), generator=generator)
        cache.push({}, torch.zeros(3000, 1), keys)
        assert torch.equal(cache.keys[cache.rows_of(keys)], keys)
    held = cache.keys
    assert torch.equal(cache.rows_of(held), torch.arange(20_000))
    assert (cache.rows_of(held + (1 << 41)) == -1).all()


@pytest.mark.parametrize(("precision", "share"), [("bfloat16", 1 / 256), ("int8", 1 / 254)])
def test_embeddings_are_rounded_no_more_than_a_precision_says(precision, share):
    cache = NegativeCache(50, 7, precision=precision)
    vectors = torch.randn(50, 7) * torch.logspace(-6, 6, 50).unsqueeze(1)
    vectors[3] = 0
    cache.push({}, vectors, torch.arange(50))
    error = (cache.items.embeddings_at(torch.arange(50)) - vectors).abs()
    largest = vectors.abs() if precision == "bfloat16" else vectors.abs().amax(1, keepdim=True)
    assert (error <= 1.0001 * share * largest).all()


def test_features_of_every_type_come_back():
    kinds = {"tokens": ((3,), torch.int32), "short": ((2,), torch.uint16), "mask": ((), torch.bool)}
    cache = NegativeCache(5, 2, kinds)
    given = {
        "tokens": torch.arange(6, dtype=torch.int32).view(2, 3),
        "short": torch.tensor([[1, 65_535], [7, 40_000]], dtype=torch.uint16),
        "mask": torch.tensor([True, False]),
    }
    cache.push(given, torch.ones(2, 2), torch.tensor([4, 2]))
    draw = cache.sample(torch.ones(3, 2), num=4)
    which = cache.rows_of(draw.keys)
    for name, values in given.items():
        assert torch.equal(draw.features[name].int(), values.int()[which])


def test_a_cache_keeps_its_types_when_a_module_is_halved():
    cache = make(3).half()
    assert cache.items.vectors.dtype == torch.float32
    assert cache.log_weights.dtype == torch.float32
    push(cache, [1])
    assert cache.rows_of(torch.tensor([1])).tolist() == [0]


def test_a_loaded_cache_draws_evicts_and_sweeps_as_the_saved_one_would():
    first = make(6, 3, eviction="lru", seed=5)
    push(first, [3, 1, 4])
    first.commit()
    push(first, [5, 9])
    first.sample(torch.randn(2, 3), 3)
    second = make(6, 3, eviction="lru", seed=0)
    second.load_state_dict(first.state_dict())
    queries = torch.randn(4, 3)
    for cache in (first, second):
        push(cache, [7, 1, 8])
    one, other = (cache.sample(queries, 5, beta=2.0) for cache in (first, second))
    assert torch.equal(one.keys, other.keys)
    assert torch.equal(one.uniforms, other.uniforms)
    assert first.oldest(2).keys.tolist() == second.oldest(2).keys.tolist()
    assert first.keys.tolist() == second.keys.tolist()


def test_a_forward_pass_changes_nothing_but_the_next_draws():
    cache = make(4, 2)
    push(cache, [0, 1, 2])
    before = {name: value.clone() for name, value in cache.state_dict().items()}
    cache.sample(torch.ones(2, 2), 3)
    for name, value in cache.state_dict().items():
        if name != "_extra_state":
            assert torch.equal(value, before[name])


def test_a_million_items_with_128_tokens_fit_in_two_and_a_half_gigabytes():
    with torch.device("meta"):
        features = {"input_ids": ((128,), torch.int32)}
        cache = NegativeCache(1_000_000, 768, features, precision="bfloat16")
    assert 2.0e9 < cache.memory_use().total_bytes < 2.5e9


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: push(c, [-1]), DataError, "keys must be >= 0, but got -1"),
        (
            lambda c: c.push({"id": torch.tensor([1])}, torch.ones(1, 3), torch.tensor([1])),
            DataError,
            r"embeddings must be \(n, 2\), but got \(1, 3\)",
        ),
        (
            lambda c: c.push({}, torch.ones(1, 2), torch.tensor([1])),
            DataError,
            r"features \['id'\]",
        ),
        (
            lambda c: c.push({"id": torch.tensor([1.0])}, torch.ones(1, 2), torch.tensor([1])),
            DataError,
            "feature 'id' must be",
        ),
        (
            lambda c: c.push(
                {"id": torch.tensor([1, 2])},
                torch.tensor([[1.0, 1.0], [1.0, torch.nan]]),
                torch.tensor([1, 2]),
            ),
            NonFiniteError,
            "1 of 2 embeddings are NaN or infinite .the first is item 2.: nothing was written",
        ),
        (
            lambda c: c.push(
                {"id": torch.tensor([1])},
                torch.ones(1, 2),
                torch.tensor([1]),
                torch.tensor([torch.inf]),
            ),
            NonFiniteError,
            "log_weights must be finite",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_written(
    call, error, words, unchecked_shapes
):
    cache = make(3, 2)
    push(cache, [5])
    before = {name: value.clone() for name, value in cache.state_dict().items()}
    with pytest.raises(error, match=words):
        call(cache)
    assert all(torch.equal(value, before[name]) for name, value in cache.state_dict().items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_items": 0}, "num_items and dim must be >= 1, but got 0 and 2"),
        ({"eviction": "random"}, "eviction must be one of fifo, lru, but got 'random'"),
        ({"corpus_size": 0}, "corpus_size must be >= 1"),
        ({"precision": "float16"}, "float32, bfloat16, int8, but got 'float16'"),
        ({"features": {"a b": ((), torch.int64)}}, "must be an identifier, but got 'a b'"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(options, words, unchecked_shapes):
    with pytest.raises(ConfigError, match=words):
        NegativeCache(**{"num_items": 4, "dim": 2, **options})


def test_the_smallest_cache_of_the_smallest_corpus():
    cache = make(1, dim=1, corpus_size=1)
    push(cache, [5])
    assert cache.sample(torch.ones(1, 1), num=1).keys.tolist() == [[5]]
    with pytest.raises(ConfigError, match="corpus_size must be >= 1, but got 0"):
        make(1, corpus_size=0)


def test_new_weights_leave_empty_rows_without_any():
    cache = make(4)
    push(cache, [10, 11])
    cache.reweigh(lambda keys: keys.float() / 10)
    assert cache.log_weights[:2].tolist() == pytest.approx([1.0, 1.1])
    assert cache.log_weights[2:].tolist() == [-torch.inf, -torch.inf]
    assert cache.sample(torch.zeros(1, 2), num=50).keys.unique().tolist() == [10, 11]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keys": torch.tensor([1])}, "keys and embeddings together"),
        ({"embeddings": torch.ones(1, 2)}, "keys and embeddings together"),
        ({"drawn": torch.ones(1, 1, 2)}, "draw and drawn together"),
    ],
)
def test_items_are_committed_with_their_embeddings(given, words):
    cache = make()
    push(cache, [1])
    with pytest.raises(ConfigError, match=f"commit needs {words}: give both, or neither"):
        cache.commit(**given)
    assert cache.clock == 0


def test_stored_items_take_no_other_format():
    items = make().items.at(torch.tensor([0]))
    assert items.with_tensors(items.tensors()).features.keys() == {"id"}
    with pytest.raises(ValueError, match="shorter"):
        items.with_tensors(items.tensors()[:1])


def test_a_table_of_keys_is_used_where_it_is_not_far_larger_than_they_are():
    among = torch.tensor([7, -1, 3, 0])
    assert positions_by_table(torch.tensor([3, 0, 5, -1, 900]), among).tolist() == [
        2,
        3,
        -1,
        -1,
        -1,
    ]
    assert positions_by_table(torch.tensor([3]), torch.tensor([19])) is None
    assert positions_by_table(torch.tensor([3, 7]), torch.tensor([7])).tolist() == [-1, 0]


class Searches(TorchDispatchMode):
    """Counts what a GPU is waited for: places of a mask, and numbers that Python reads."""

    num = 0

    def __torch_dispatch__(self, function, types, args=(), options=None):
        name = str(function)
        is_by_mask = name == "aten.index.Tensor" and any(
            place is not None and place.dtype == torch.bool for place in args[1]
        )
        self.num += is_by_mask or "nonzero" in name or "_local_scalar" in name
        return function(*args, **(options or {}))


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_commit_waits_for_what_is_held_what_is_repeated_and_what_is_finite_only():
    cache = make(8, 2)
    push(cache, range(8))
    draw = cache.sample(torch.randn(3, 2), num=4)
    with Searches() as searches:
        cache.commit(draw, torch.randn(3, 4, 2), torch.tensor([5, 99]), torch.randn(2, 2))
    assert searches.num <= 3 + 1  # a table for few keys reads their largest, on the CPU only
    assert ages(cache)[5] == 0
