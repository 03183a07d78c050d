"""Rows that owners serve at any time, with real ranks over gloo."""

import threading
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import Started, run_ranks

from outsize.contracts import RowUpdate, Shard
from outsize.kernels.rows.updates import AdagradRule, SGDRule
from outsize.spec import TableSpec
from outsize.stores import LocalStore, ServedStore
from outsize.stores.packing import RowRequest
from outsize.stores.replies import join_replies

SPECS = [TableSpec("wide", 13, 4), TableSpec("thin", 5, 2), TableSpec("other", 2, 4)]
RANKS = Path(__file__).parents[2] / "ranks"


def test_three_ranks_serve_each_other():
    code, output, errors = run_ranks(3, RANKS / "check_served.py")
    assert code == 0, errors
    assert output.count("has passed") == 3


def test_a_rank_that_leaves_ends_cleanly_and_the_others_are_told():
    code, output, errors = run_ranks(3, RANKS / "check_served_leaving.py")
    assert code == 0, errors
    assert output.count("has passed") == 2
    assert "terminate" not in errors


def test_a_rank_that_dies_before_its_goodbye_is_not_waited_for(tmp_path):
    script = RANKS / "check_served_killed.py"
    ranks = [Started([script, tmp_path, number]) for number in range(3)]
    try:
        for number, process in enumerate(ranks[:2]):
            output, errors = process.communicate(timeout=120)
            assert f"rank {number} was told: not all ranks reached the barrier" in output, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@given(
    st.sets(st.integers(0, 19)), st.integers(1, 5), st.booleans(), st.integers(0, 4),
)  # fmt: skip
def test_joined_answers_of_owners_are_the_answer_of_one_store(asked, num_owners, has_clocks, known):
    ids = torch.tensor(sorted(asked), dtype=torch.int64)
    everything = torch.arange(20)
    gradients = (torch.randn(15, 4), torch.randn(5, 2))
    whole = LocalStore(SPECS)
    owners = [LocalStore(SPECS, shard=Shard(index, num_owners)) for index in range(num_owners)]
    whole.bind(AdagradRule(0.1))
    update = RowUpdate(everything, gradients, everything % 7)
    whole.exchange(update, ids)
    replies, questions = [], []
    for index, owner in enumerate(owners):
        owner.bind(AdagradRule(0.1))
        mine = ids[ids % num_owners == index]
        clocks = torch.full_like(mine, known) if has_clocks else None
        replies.append(
            owner.exchange(update.take(everything[everything % num_owners == index]), mine, clocks)
        )
        places = (ids % num_owners == index).nonzero().flatten()
        questions.append(RowRequest(update, mine, clocks, places))
    joined = join_replies(replies, questions)
    clocks = torch.full_like(ids, known) if has_clocks else None
    expected = whole.exchange(None, ids, clocks)
    assert torch.equal(joined.stale, expected.stale)
    assert torch.equal(joined.clocks, expected.clocks)
    assert joined.behind == expected.behind
    for group in range(2):
        assert torch.equal(joined.rows[group], expected.rows[group])
        if has_clocks:
            assert torch.equal(joined.state[group]["sum"], expected.state[group]["sum"])
    assert len(joined.state) == len(expected.state)


def test_one_process_needs_no_thread():
    before = threading.active_count()
    with ServedStore(SPECS) as store:
        store.bind(SGDRule(0.1))
        store.flush()
        assert threading.active_count() == before
    store.close()
