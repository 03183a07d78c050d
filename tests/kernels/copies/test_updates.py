"""One pass over the gradients of a batch does what the passes after each other do."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.compiled import numba_problem
from outsize.kernels.copies import passes
from outsize.kernels.copies.passes import CopyLines
from outsize.kernels.copies.updates import add_and_update, apply_pending
from outsize.kernels.rows.updates import AdagradRule, SGDRule
from outsize.stores.merging import squares_for

NUM_SLOTS = 40
RULES = {
    "sgd": SGDRule(0.1, compiled=True),
    "row-wise": AdagradRule(0.1, row_wise=True, compiled=True),
    "adagrad": AdagradRule(0.1, compiled=True),
}


def make_copies(dim, rule, seed):
    generator = torch.Generator().manual_seed(seed)
    square = rule.square(torch.empty(0, dim))
    squares = None if square is None else torch.rand(NUM_SLOTS, square.shape[1])
    zeros = torch.zeros(NUM_SLOTS, dtype=torch.int64)
    copies = CopyLines(
        torch.randn(NUM_SLOTS, dim, generator=generator), zeros.clone(), zeros.int(),
        torch.randn(NUM_SLOTS, dim, generator=generator), squares, zeros.bool(), zeros.int(),
        zeros.clone(),
    )  # fmt: skip
    return copies, {n: torch.rand(NUM_SLOTS, w) for n, w in rule.state_widths(dim).items()}


@pytest.mark.skipif(numba_problem() is not None, reason=f"{numba_problem()}")
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from([1, 3, 8, 13, 128]),
    st.sampled_from([0, 1, 2, 30]),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_one_pass_equals_the_passes_after_each_other(name, dim, num, num_workers, seed):
    rule, generator = RULES[name], torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    copies, state = make_copies(dim, rule, seed)
    others = CopyLines(*(None if p is None else p.clone() for p in vars(copies).values()))
    other_state = {n: part.clone() for n, part in state.items()}
    slots = torch.randperm(NUM_SLOTS, generator=generator)[:num]
    slots[torch.rand(num, generator=generator) < 0.3] = -1
    gradients = torch.randn(num, dim, generator=generator)
    ticks = torch.randint(1, 3, (num,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "numba")
        assert add_and_update(copies, state, rule, slots, gradients, ticks, num_workers, 7)
        squares = rule.square(gradients)
        added = passes.add_pending(
            others, slots, gradients, ticks, squares, num_workers, 7
        )  # the reference of this pass is torch's: see `test_passes`
        assert rule.update(
            others.rows, other_state, others.ticks, added.slots, added.gradients, added.ticks
        )
    for value, other in zip(vars(copies).values(), vars(others).values(), strict=True):
        assert value is other is None or torch.equal(value, other)
    assert all(torch.equal(part, other_state[n]) for n, part in state.items())


@pytest.mark.skipif(numba_problem() is not None, reason=f"{numba_problem()}")
@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from([1, 3, 8, 13, 128]),
    st.sampled_from([0, 1, 30]),
    st.integers(1, 5),
    st.integers(0, 99),
)
def test_what_is_pending_is_applied_as_an_owner_applies_it(name, dim, num, num_workers, seed):
    rule, generator = RULES[name], torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    copies, state = make_copies(dim, rule, seed)
    copies.ticks.copy_(torch.randint(0, 4, (NUM_SLOTS,), generator=generator))
    rows, others = copies.rows.clone(), {n: part.clone() for n, part in state.items()}
    before = [copies.ticks.clone(), copies.pending.clone(), copies.clocks.clone()]
    slots = torch.randperm(NUM_SLOTS, generator=generator)[:num]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTSIZE_KERNELS", "numba")
        assert apply_pending(copies, state, rule, slots, num_workers)
        mean, ticks = copies.pending[slots] / num_workers, copies.ticks[slots]
        summed = None if copies.squares is None else (copies.squares[slots],)
        squares = squares_for(rule, (mean,), summed, ticks > 1, num_workers)
        assert rule.update(
            rows, others, torch.zeros(NUM_SLOTS).int(), slots, mean, ticks.long(),
            None if squares is None else squares[0],
        )  # fmt: skip
    assert torch.equal(copies.rows, rows)
    assert all(torch.equal(part, others[n]) for n, part in state.items())
    for value, other in zip((copies.ticks, copies.pending, copies.clocks), before, strict=True):
        assert torch.equal(value, other)


def test_a_rule_without_a_kernel_is_left_to_torch(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    rule = AdagradRule(0.1, row_wise=True)
    copies, state = make_copies(4, rule, 0)
    slots, gradients = torch.arange(3), torch.ones(3, 4)
    before = copies.rows.clone()
    assert not add_and_update(copies, state, rule, slots, gradients, torch.ones(3).long(), 2, 7)
    assert not apply_pending(copies, state, rule, slots, 2)
    assert torch.equal(copies.rows, before)
