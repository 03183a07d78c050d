import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import ConfigError, DataError
from outsize.metrics import RankingMetrics


def flat(lists):
    """Lists of items as values and offsets."""
    sizes = [len(items) for items in lists]
    offsets = torch.tensor([sum(sizes[:i]) for i in range(len(lists))], dtype=torch.int64)
    return torch.tensor([i for items in lists for i in items], dtype=torch.int64), offsets


def metrics_of(ranked, relevant, **cuts):
    metrics = RankingMetrics(**cuts)
    metrics.add(torch.tensor(ranked), *flat(relevant))
    return metrics.result()


def test_a_small_case_by_hand():
    found = metrics_of(
        [[7, 3, 9, 1], [5, 6, -1, -1]],
        [[3, 1, 8], [5]],
        recall_at=(2, 4), ndcg_at=(4,), mrr_at=(1, 4), hit_at=(1,),
    )  # fmt: skip
    gained = 1 / math.log2(3) + 1 / math.log2(5)
    ideal = 1 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found == {
        "recall@2": pytest.approx((1 / 3 + 1) / 2),
        "recall@4": pytest.approx((2 / 3 + 1) / 2),
        "ndcg@4": pytest.approx((gained / ideal + 1) / 2),
        "mrr@1": 0.5,
        "mrr@4": pytest.approx((1 / 2 + 1) / 2),
        "hit@1": 0.5,
        "num_queries": 2,
    }


def test_the_ideal_ranking_has_no_more_hits_than_places():
    found = metrics_of([[1, 2]], [[1, 2, 3, 4]], recall_at=(2,), ndcg_at=(2,), mrr_at=(2,))
    assert found["ndcg@2"] == 1.0
    assert found["recall@2"] == 0.5  # divided by all four


def test_queries_without_a_relevant_item_do_not_count():
    both = metrics_of([[1], [2]], [[], [2]], recall_at=(1,), ndcg_at=(1,), mrr_at=(1,))
    assert both == {"recall@1": 1.0, "ndcg@1": 1.0, "mrr@1": 1.0, "num_queries": 1}


def test_repeated_relevant_items_count_once():
    found = metrics_of([[4, 5]], [[4, 4, 6]], recall_at=(2,), ndcg_at=(2,), mrr_at=(2,))
    assert found["recall@2"] == 0.5


def test_an_empty_place_is_no_hit():
    found = metrics_of([[-1, -1]], [[0]], recall_at=(2,), ndcg_at=(2,), mrr_at=(2,))
    assert found["recall@2"] == 0.0


def test_no_query_at_all_is_no_number():
    assert RankingMetrics().result()["recall@20"] is None
    assert metrics_of([[1]], [[]], recall_at=(1,), ndcg_at=(), mrr_at=())["num_queries"] == 0


def test_too_short_rankings_and_impossible_cut_offs_are_refused():
    with pytest.raises(DataError, match="rankings of 2 places cannot be evaluated at 20"):
        metrics_of([[1, 2]], [[1]])
    with pytest.raises(ConfigError, match="must be >= 1"):
        RankingMetrics(recall_at=(0,))


def by_definition(ranked, relevant, k):
    hits = [i for i, item in enumerate(ranked[:k]) if item in relevant]
    ideal = sum(1 / math.log2(i + 2) for i in range(min(len(relevant), k)))
    precise = [place / (i + 1) for place, i in enumerate(hits, 1)]
    return {
        f"map@{k}": sum(precise) / len(relevant),
        f"recall@{k}": len(hits) / len(relevant),
        f"ndcg@{k}": sum(1 / math.log2(i + 2) for i in hits) / ideal,
        f"mrr@{k}": 1 / (hits[0] + 1) if hits else 0.0,
        f"hit@{k}": float(bool(hits)),
    }


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.permutations(range(12)), st.sets(st.integers(0, 15))), min_size=1, max_size=6
    ),
    st.integers(1, 12),
    st.integers(1, 6),
)
def test_batches_of_any_cut_agree_with_the_definitions(queries, k, batch):
    cuts = dict.fromkeys(("recall_at", "ndcg_at", "mrr_at", "hit_at", "map_at"), (k,))
    metrics = RankingMetrics(**cuts)
    for first in range(0, len(queries), batch):
        ranked, relevant = zip(*queries[first : first + batch], strict=True)
        metrics.add(torch.tensor(ranked), *flat([sorted(items) for items in relevant]))
    expected = [by_definition(list(r), s, k) for r, s in queries if s]
    found = metrics.gather().result()
    assert found.pop("num_queries") == len(expected)
    for name, value in found.items():
        if expected:
            assert value == pytest.approx(sum(e[name] for e in expected) / len(expected))
        else:
            assert value is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.permutations(range(9)), st.dictionaries(st.integers(0, 12), st.integers(-1, 4))
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 9),
    st.sampled_from(["linear", "exponential"]),
)
def test_graded_ndcg_agrees_with_its_definition(queries, k, gain):
    metrics = RankingMetrics((), (k,), (), gain=gain)
    ranked, grades = zip(*queries, strict=True)
    flat_grades = torch.tensor([g for judged in grades for g in judged.values()], dtype=torch.int64)
    metrics.add(torch.tensor(ranked), *flat([list(judged) for judged in grades]), flat_grades)

    def gained(levels):
        numbers = [max(g, 0) if gain == "linear" else 2 ** max(g, 0) - 1 for g in levels[:k]]
        return sum(number / math.log2(place + 2) for place, number in enumerate(numbers))

    values = []
    for order, judged in queries:
        if any(grade > 0 for grade in judged.values()):
            ideal = gained(sorted(judged.values(), reverse=True))
            values.append(gained([judged.get(item, 0) for item in order]) / ideal)
    found = metrics.result()
    assert found["num_queries"] == len(values)
    assert found[f"ndcg@{k}"] == (pytest.approx(sum(values) / len(values)) if values else None)


def test_grades_of_1_are_binary_relevance_and_of_repeats_the_highest_counts():
    cuts = {"recall_at": (3,), "ndcg_at": (3,), "mrr_at": (3,), "map_at": (3,)}
    ranked, relevant = torch.tensor([[4, 5, 6]]), flat([[5, 9, 5]])
    binary, graded = RankingMetrics(**cuts), RankingMetrics(**cuts)
    binary.add(ranked, *relevant)
    graded.add(ranked, *relevant, torch.tensor([1, 1, 1]))
    assert graded.result() == pytest.approx(binary.result())
    higher = RankingMetrics(**cuts)
    higher.add(ranked, *relevant, torch.tensor([1, 1, 3]))
    assert higher.result()["ndcg@3"] == pytest.approx(3 / math.log2(3) / (3 + 1 / math.log2(3)))
    with pytest.raises(ConfigError, match="gain must be"):
        RankingMetrics(gain="square")


@pytest.mark.gpu
def test_adding_a_batch_does_not_synchronize_the_device():
    metrics = RankingMetrics((3,), (3,), (3,), (3,), "cuda", map_at=(3,))
    values, offsets = flat([[5, 9, 5], [4]])
    tensors = torch.tensor([[4, 5, 6]] * 2), values, offsets, torch.tensor([1, 2, 3, 0])
    moved = [tensor.cuda() for tensor in tensors]
    torch.cuda.set_sync_debug_mode("error")
    try:
        metrics.add(*moved[:3])
        metrics.add(*moved)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert metrics.result()["num_queries"] == 3
