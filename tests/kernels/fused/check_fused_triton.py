"""Checks of the Triton kernels for rows on CPU tensors, run under Triton's interpreter."""

import itertools
from importlib import import_module

import torch
from interpreted import mend_interpreter
from row_checks import (
    RULES,
    SHAPES,
    assert_columns_are_read_in_place,
    assert_drawn,
    assert_gathers,
    assert_nothing_changes,
    assert_rounds,
    assert_sums,
    assert_trains,
    draw_ids,
)

import outsize
from outsize.kernels.gather import sums_triton

OPERATIONS = ("distinct", "gather", "fused")


def check_training():
    """Training by the kernels through public names, fused and staged, beside that on the CPU."""
    specs = [outsize.TableSpec("a", 9, 4), outsize.TableSpec("b", 30, 4)]
    features = [outsize.FeatureSpec("a"), outsize.FeatureSpec("b")]
    ids = {"a": draw_ids(20, 9), "b": draw_ids(20, 30, seed=1)}
    bags = {"a": ids["a"].view(10, 2), "b": ids["b"].view(10, 2)}
    found = []
    for fused, kernels in ((True, True), (False, True), (False, False)):
        for module in ("contracts.fused", *(f"kernels.{name}.{name}" for name in OPERATIONS)):
            import_module(f"outsize.{module}").uses_triton = lambda *tensors, choice=kernels: choice
        store = outsize.LocalStore(specs)
        rows = outsize.RowAdagrad(store, learning_rate=0.1, fused=fused)
        embeddings = outsize.EmbeddingCollection(features, store)
        for guard in (selection.guard for selection in embeddings._selections.values()):
            guard.worst = lambda: torch.full((2,), torch.iinfo(torch.int64).min)
        for batch in (ids, bags, ids):
            embeddings.stacked(batch).pow(2).sum().backward()
            if fused:
                assert float(store.fused.squared_norm) > 0
            rows.step()
        rows.raise_if_non_finite()
        found.append(store.state_dict())
    assert found[0]["clocks"].sum() > 0
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


mend_interpreter()

for number, shape in enumerate(SHAPES):
    assert_sums(*shape, seed=number)
for dim, dtype in itertools.product((1, 5, 16), (torch.float32, torch.bfloat16, torch.float16)):
    assert_gathers(dim, dtype)
assert_rounds(torch.bfloat16)
assert_rounds(torch.float16)
for rule, bagged in itertools.product(RULES, ("", "sum", "scaled")):
    assert_trains(rule, torch.float32, bagged)
assert_trains(RULES[1], torch.bfloat16, "")
assert_trains(RULES[3], torch.float16, "")
for seed in range(10):
    assert_drawn(seed, most=200)
assert_nothing_changes()
assert_columns_are_read_in_place()

sums_triton.CHUNK, sums_triton.GROUP, sums_triton.TILE = 2, 3, 16  # many chunks and groups
for number, shape in enumerate(
    [(40, 1, 4, 1), (150, 2, 4, 1), (150, 90, 3, 4), (7, 9, 20, 1), (11, 2, 3, 1)]
):
    assert_sums(*shape, seed=number)
check_training()
print("all checks passed")
