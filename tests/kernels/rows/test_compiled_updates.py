"""The compiled update rules: those of torch, the same bits everywhere."""

from dataclasses import replace

import pytest
import torch

import outsize
from outsize.kernels.rows import in_place
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule

pytest.importorskip("numba")
RULES = [
    SGDRule(0.1),
    AdagradRule(0.1, 1e-8, row_wise=True),
    AdagradRule(0.1, initial_sum=0.5),
    AdamRule(0.01),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dim", [1, 3, 16, 21])
@pytest.mark.parametrize("with_squares", [False, True])
@pytest.mark.parametrize("num", [0, 1, 100])
def test_a_kernel_equals_torch_in_a_table_and_on_compact_rows(rule, dim, with_squares, num):
    rows, places = torch.randn(200, dim), torch.randperm(200)[:num].sort().values
    state = {name: torch.rand(200, width) for name, width in rule.state_widths(dim).items()}
    clocks, ticks = torch.zeros(200, dtype=torch.int32), torch.randint(0, 3, (num,))
    gradients = torch.randn(num, dim)
    squares = rule.square(gradients) if with_squares else None
    squares = None if squares is None else 1.5 * squares

    def step(rule):
        compact, compact_state = rows[places], {name: part[places] for name, part in state.items()}
        rule.step(compact, compact_state, gradients, squares)
        return compact, compact_state

    expected, expected_state = step(rule)
    fast = replace(rule, compiled=True)
    found, found_state = step(fast)
    # Adam's bias correction, 1 − 0.999^t in float32, has four digits.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert fast.update(rows, state, clocks, places, gradients, ticks, squares)
    assert torch.equal(rows[places], found)
    assert clocks.sum() == ticks.sum()
    for name, part in expected_state.items():
        torch.testing.assert_close(found_state[name], part)
        assert torch.equal(state[name][places], found_state[name])


def test_other_types_and_rules_without_a_kernel_are_left_to_torch():
    rows, clocks = torch.randn(5, 3).bfloat16(), torch.zeros(5, dtype=torch.int32)
    ids, ones = torch.tensor([1]), torch.ones(1, dtype=torch.int64)
    fast = SGDRule(0.1, compiled=True)
    assert not fast.update(rows, {}, clocks, ids, torch.ones(1, 3), ones)
    assert not SGDRule(0.1).update(rows.float(), {}, clocks, ids, torch.ones(1, 3), ones)
    assert clocks.sum() == 0


def test_updates_do_not_depend_on_the_number_of_threads(monkeypatch):
    gradients, places = torch.randn(300, 5), torch.arange(300)
    found = []
    for parts in (1, 3):
        monkeypatch.setattr(in_place, "num_parts", lambda *_, parts=parts: parts)
        rows, sums = torch.ones(300, 5), torch.zeros(300, 1)
        AdagradRule(0.1, row_wise=True, compiled=True).update(
            rows, {"sum": sums}, torch.zeros(300, dtype=torch.int32), places, gradients, places
        )
        found.append(rows)
    assert torch.equal(*found)


def test_large_stores_use_kernels_and_small_ones_torch(monkeypatch):
    monkeypatch.delenv("OUTSIZE_KERNELS", raising=False)
    for num_rows, is_large in ((1 << 16, True), (100, False)):
        store = outsize.LocalStore([outsize.TableSpec("ad", num_rows, 16)])
        outsize.RowSGD(store)
        assert store.rule.compiled == is_large


@pytest.mark.parametrize("dim", [1, 7, 16, 129])
def test_squares_for_a_sum_are_those_of_the_step(dim):
    rule = replace(RULES[1], compiled=True)
    gradients, found = torch.randn(9, dim), []
    torch.testing.assert_close(rule.square(gradients), RULES[1].square(gradients))
    for squares in (None, rule.square(gradients)):
        rows, state = torch.ones(9, dim), {"sum": torch.full((9, 1), 0.5)}
        rule.step(rows, state, gradients, squares)
        found.append((rows, state["sum"]))
    for alone, summed in zip(*found, strict=True):
        assert torch.equal(alone, summed)
