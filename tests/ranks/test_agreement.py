"""Ranks that do not do the same all raise, and say what differs."""

from pathlib import Path

import pytest
import torch
from processes import run_ranks

from outsize import EmbeddingCollection, ShardedNegativeCache
from outsize.contracts import RowUpdate
from outsize.errors import IdError, NonFiniteError, RanksError
from outsize.kernels.rows.updates import AdagradRule, SGDRule
from outsize.optimizers import RowSGD
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.spec import FeatureSpec, TableSpec
from outsize.stores import CachedStore, ShardedStore

WIDE, THIN = TableSpec("wide", 30, 4), TableSpec("thin", 20, 4)
IDS = torch.arange(0, 40, 3)


def words_of(work, size=3):
    """What each of several ranks says when all are to refuse."""

    def refused(ranks):
        with pytest.raises(RanksError) as caught:
            work(ranks)
        return str(caught.value)

    found = run_as_ranks(size, refused)
    assert all("\n" not in words for words in found)
    return found


def all_say(work, *expected):
    words = words_of(work)
    assert len(set(words)) == 1, words
    assert all(word in words[0] for word in expected), words[0]


DTYPES = [torch.float32, torch.bfloat16]
DIFFERENT = {
    "order": (lambda r: {"specs": [WIDE, THIN] if r.rank else [THIN, WIDE]}, "table 'thin' of 20"),
    "rows": (lambda r: {"specs": [TableSpec("wide", 30 + r.rank // 2, 4), THIN]}, "of 31 rows"),
    "dim": (lambda r: {"specs": [TableSpec("wide", 30, 4 + r.rank), THIN]}, "of 5 float32"),
    "dtype": (
        lambda r: {"specs": [TableSpec("wide", 30, 4, dtype=DTYPES[r.rank == 1])]},
        "of 4 bfloat16",
    ),
    "name": (lambda r: {"specs": [TableSpec(f"wide-{r.rank}", 30, 4)]}, "table 'wide-1'"),
    "wire": (lambda r: {"wire": ("float32", "int8")[r.rank == 2]}, "wire int8"),
    "owners": (lambda r: {"num_owners": 3 - (r.rank == 1)}, "2 owners"),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_ranks_with_different_stores_all_raise_and_name_the_difference(case):
    make, expected = DIFFERENT[case]

    def work(ranks):
        store = ShardedStore(**{"specs": [WIDE, THIN], **make(ranks)}, group=ranks)
        store.exchange(None, torch.arange(0, 20, 3))

    all_say(work, "rank 0 has", expected)


def test_ranks_with_different_optimizers_all_raise():
    def work(ranks):
        store = ShardedStore([WIDE], group=ranks)
        store.bind(AdagradRule(0.1, row_wise=ranks.rank == 0))
        store.exchange(None, torch.arange(9))

    all_say(work, "optimizer AdagradRule with state {'sum': 1}", "rank 1")


def in_training(store):
    store.exchange(None, IDS)


OPERATIONS = {
    "a read for training": in_training,
    "a read for evaluation": lambda store: store.peek(IDS),
    "a flush": lambda store: store.flush(),
}
PAIRS = [(one, other) for one in OPERATIONS for other in OPERATIONS if one != other]


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_ranks_in_different_operations_all_raise_and_name_both(is_cached, one, other):
    def work(ranks):
        store = ShardedStore([WIDE, THIN], group=ranks)
        if is_cached:
            store = CachedStore(store, 10, 2, 2)
        store.bind(SGDRule(1.0))
        store.submit(RowUpdate(IDS, (torch.ones(len(IDS), 4),), torch.ones_like(IDS)))
        OPERATIONS[one if ranks.rank == 1 else other](store)

    all_say(work, f"rank 0 {other}", f"rank 1 {one}")


def test_an_id_out_of_range_on_one_rank_is_an_error_of_all():
    def work(ranks):
        store = ShardedStore([WIDE], group=ranks)
        RowSGD(store)
        embeddings = EmbeddingCollection([FeatureSpec("wide")], store)
        with pytest.raises(IdError if ranks.rank == 1 else RanksError) as caught:
            embeddings({"wide": torch.tensor([3, 99 if ranks.rank == 1 else 4])})
        embeddings.eval()
        embeddings({"wide": torch.tensor([3, 4])})  # and all go on together
        return str(caught.value)

    words = run_as_ranks(3, work)
    assert words[0] == words[2]
    assert "rank 1 failed before a read for training" in words[0]


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("has_rows", [True, False])
def test_an_infinity_on_one_rank_makes_all_skip_and_scales_stay_equal(is_cached, has_rows):
    """Rank 2 may have no rows in its batch at all."""

    def work(ranks):
        store = ShardedStore([WIDE], group=ranks)
        store = CachedStore(store, 10, 2, 0) if is_cached else store
        rows = RowSGD(store, learning_rate=1.0)
        embeddings = EmbeddingCollection([FeatureSpec("wide")], store)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        before = store.read(torch.arange(30))
        scales = []
        for factor in (torch.inf, 1.0):
            ids = torch.tensor([3, 4]) if has_rows or ranks.rank < 2 else torch.arange(0)
            loss = embeddings({"wide": ids})["wide"].sum()
            scaler.scale(loss * (factor if ranks.rank == 1 else 1.0)).backward()
            rows.share_infinities()
            scaler.unscale_(rows)
            scaler.step(rows)
            scaler.update()
            rows.zero_grad()
            store.flush()
            moved = before - store.read(torch.arange(30))
            scales.append((scaler.get_scale(), float(moved.sum())))
        return scales

    found = run_as_ranks(3, work)
    moved = pytest.approx(2 * 4 * (3 if has_rows else 2) / 3)
    assert found == [[(4.0, 0.0), (8.0, moved)]] * 3


def test_without_a_scaler_all_ranks_refuse_together():
    def work(ranks):
        store = ShardedStore([WIDE], group=ranks)
        rows = RowSGD(store, learning_rate=1.0)
        embeddings = EmbeddingCollection([FeatureSpec("wide")], store)
        loss = embeddings({"wide": torch.tensor([3, 4])})["wide"].sum()
        (loss * (torch.nan if ranks.rank == 0 else 1.0)).backward()
        rows.share_infinities()
        with pytest.raises(NonFiniteError):
            rows.step()

    run_as_ranks(3, work)


@pytest.mark.parametrize(
    "options", [{"dim": 3}, {"num_items": 60}, {"precision": "float32"}, {"eviction": "lru"}]
)
def test_ranks_with_different_negative_caches_all_raise(options):
    def work(ranks):
        known = {"num_items": 30, "dim": 4, **(options if ranks.rank == 2 else {})}
        cache = ShardedNegativeCache(**known, group=ranks)
        cache.push(None, torch.ones(6, known["dim"]), torch.arange(6))

    all_say(work, "rank 0 has", "but rank 2 has")


def test_real_ranks_that_disagree_all_raise():
    script = Path(__file__).with_name("check_agreement.py")
    code, output, errors = run_ranks(2, script, timeout=180)
    assert code == 0, errors
    assert output.count("has passed") == 2


def test_ranks_that_push_and_draw_items_at_once_all_raise():
    def work(ranks):
        cache = ShardedNegativeCache(30, 4, group=ranks)
        cache.push(None, torch.ones(6, 4), torch.arange(6))
        if ranks.rank == 0:
            cache.sample(torch.ones(2, 4), 3)
        else:
            cache.push(None, torch.ones(6, 4), torch.arange(6))

    all_say(work, "rank 0 a draw of items, rank 1 a push of items")
