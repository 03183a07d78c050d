"""Checks of the Triton path on CPU tensors, run as a script under Triton's interpreter."""

from dataclasses import replace

import numpy as np
import torch
import triton.language as tl
from draw_checks import assert_drawn_from, exact_logits, held_keys, normal, scored_items
from triton.runtime import interpreter

from outsize.kernels.directory.lookup import keys_and_ages, rows_holding
from outsize.kernels.directory.lookup_triton import keys_and_ages_by_triton, rows_holding_by_triton
from outsize.kernels.softmax import tuning
from outsize.kernels.softmax.draws import ScoredItems, softmax_mean
from outsize.kernels.softmax.inversion import systematic_uniforms
from outsize.kernels.softmax.reference import draw_by_inversion
from outsize.kernels.softmax.triton import mean_launches
from outsize.kernels.softmax.triton.draw_launches import draw_by_triton
from outsize.kernels.softmax.triton.mean_launches import mean_by_triton
from outsize.kernels.softmax.tuning import SoftmaxTuning

SMALL = SoftmaxTuning(query_tile=16, item_tile=64, depth=16, block=16, draw_depth=16)
IN_TURNS = replace(SMALL, programs_per_processor=1, flatten=True)


def mend_interpreter():
    """Make the interpreter of Triton 3.6 do what the compiled language does.

    It multiplies the bits of bfloat16 as if they were integers, casts integers to those bits, and
    turns arrays of one number to an index in a way that numpy 2.4 refuses.
    """
    builder = interpreter.InterpreterBuilder
    dot, cast, patch = builder.create_dot, builder.cast_impl, interpreter._patch_lang_tensor

    def mended_dot(self, left, right, *rest):
        sides = (
            self.create_fp_ext(side, tl.float32) if side.dtype.scalar == tl.bfloat16 else side
            for side in (left, right)
        )
        return dot(self, *sides, *rest)

    def mended_cast(self, source, target):
        if target.scalar == tl.bfloat16 and not source.dtype.scalar.is_floating():
            source = cast(self, source, tl.float32)
        return cast(self, source, target)

    def mended_patch(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    builder.create_dot, builder.cast_impl = mended_dot, mended_cast
    interpreter._patch_lang_tensor = mended_patch


def check_logits(num_items, dim, dtype, tuning, num_queries=5):
    log_weights = normal(num_items, seed=9)
    log_weights[1::3] = -torch.inf
    items = scored_items(num_items, dim, dtype, log_weights=log_weights)
    queries = normal(num_queries, dim, seed=5)
    excluded = torch.randint(-1, num_items + 3, (num_queries, 3))
    excluded[:, 2] = excluded[:, 0] + 1  # often in the block of the first
    logits = exact_logits(queries, items, excluded)
    draws = draw_by_triton(queries, items, 2, torch.Generator(), excluded, tuning)
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    has_items = (logits > -torch.inf).any(dim=1, keepdim=True).expand_as(draws.rows)
    assert torch.equal(draws.rows >= 0, has_items)
    drawn = logits.gather(1, draws.rows.clamp(min=0)).float()
    drawn = torch.where(has_items, drawn, -torch.inf)
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)


def check_draws(num=300):
    """Draws among two groups of blocks, nearly all mass on one item that is excluded."""
    num_items = 1500
    log_weights = torch.full((num_items,), -9.0)
    log_weights[torch.arange(0, num_items, 149)] = 0.0
    log_weights[450] = 12.0
    items = scored_items(num_items, 8, log_weights=log_weights)
    queries, excluded = normal(1, 8, seed=1), torch.tensor([[450, -1]])
    tuning = replace(SMALL, item_tile=512)
    draws = draw_by_triton(queries, items, num, torch.Generator(), excluded, tuning)
    assert_drawn_from(draws.rows, exact_logits(queries, items, excluded)[0])


def check_systematic(dtype, num=24):
    """An item is drawn as often as its probability asks; one that is excluded for a query never."""
    items = scored_items(1500, 8, dtype)
    queries, excluded = normal(2, 8, seed=1), torch.tensor([[450, -1], [0, 1499]])
    tuning = replace(SMALL, item_tile=512)
    draws = draw_by_triton(queries, items, num, torch.Generator(), excluded, tuning, True)
    logits = exact_logits(queries, items, excluded)
    counts = torch.zeros(2, 1500).scatter_add_(1, draws.rows, torch.ones(2, num))
    assert ((counts - num * logits.softmax(dim=1)).abs() < 1.01).all()
    drawn = logits.gather(1, draws.rows).float()
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)
    uniforms = systematic_uniforms(2, num, torch.Generator())
    expected = draw_by_inversion(queries, items, uniforms, excluded)
    assert (draws.rows != expected.rows).double().mean() < 0.05


def check_many_queries():
    """More queries than are asked at a time; draws and log-partitions stay in their lines."""
    tuning._MAX_MASS_BYTES, kept = 4 * 20, tuning._MAX_MASS_BYTES
    assert tuning.queries_per_pass(300, SMALL) == 16
    check_logits(300, 8, torch.float32, SMALL, num_queries=40)
    tuning._MAX_MASS_BYTES = kept


def check_nothing_to_draw():
    items = scored_items(40, 8)
    excluded = torch.arange(40).expand(2, -1).contiguous()
    excluded[1] = -1
    draws = draw_by_triton(normal(2, 8), items, 2, torch.Generator(), excluded, SMALL)
    assert (draws.rows[0] == -1).all()
    assert draws.log_partition[0] == -torch.inf
    assert (draws.rows[1] >= 0).all()
    assert draws.log_partition[1].isfinite()


def check_not_finite():
    queries = normal(4, 8)
    queries[1, 3], queries[3, 0] = torch.nan, -torch.inf
    items = scored_items(40, 8)
    items = ScoredItems(items.vectors, None, items.log_weights + 1e4)
    draws = draw_by_triton(queries, items, 2, torch.Generator(), None, SMALL)
    assert draws.log_partition.isnan().tolist() == [False, True, False, True]
    assert (draws.rows[1::2] == -1).all()
    assert (draws.logits[1::2] == -torch.inf).all()
    assert ((draws.rows[::2] >= 0) & (draws.rows[::2] < 40)).all()


def check_mean(dtype, num_queries=20, num_items=3000, dim=16):
    """Items in several parts, some weighing nothing, all of them excluded for one query."""
    log_weights = normal(num_items, seed=9)
    log_weights[1::3] = -torch.inf
    items = scored_items(num_items, dim, dtype, log_weights=log_weights)
    queries = normal(num_queries, dim, seed=5)
    excluded = torch.randint(-1, num_items + 3, (num_queries, num_items))
    excluded[0] = torch.arange(num_items)
    log_partition = exact_logits(queries, items, excluded).logsumexp(dim=1).float()
    queries[1, 0], log_partition[1] = torch.nan, torch.nan
    with np.errstate(over="ignore"):
        found = mean_by_triton(queries, items, log_partition, excluded)
    expected = softmax_mean(queries, items, log_partition, excluded)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4, equal_nan=True)
    assert (found[0] == 0).all()
    assert found[1].isnan().all()


def check_held_rows():
    held, lists = held_keys(90)
    keys = torch.randint(-2, 200, (7, 40)).clamp_(min=-1)
    assert torch.equal(rows_holding_by_triton(keys, held, lists), rows_holding(keys, held, lists))
    rows, encoded_at = torch.randint(-1, 90, (5, 60)), torch.arange(90) * 7
    found = keys_and_ages_by_triton(rows, held, encoded_at, 1000)
    for ours, expected in zip(found, keys_and_ages(rows, held, encoded_at, 1000), strict=True):
        assert torch.equal(ours, expected)


if __name__ == "__main__":
    np.seterr(all="ignore")  # −inf is expected
    mend_interpreter()
    torch.manual_seed(0)
    check_logits(1, 3, torch.float32, SMALL)
    check_logits(70, 16, torch.float32, SMALL, num_queries=17)
    check_logits(300, 40, torch.bfloat16, IN_TURNS)
    check_logits(200, 37, torch.int8, SMALL)
    check_logits(100, 32, torch.bfloat16, replace(IN_TURNS, descriptors=True))
    check_logits(100, 32, torch.int8, replace(SMALL, descriptors=True))
    mean_launches._SHARES_PER_PASS = 20 * 1024
    check_mean(torch.bfloat16)
    check_mean(torch.int8)
    check_held_rows()
    check_many_queries()
    check_nothing_to_draw()
    check_not_finite()
    check_draws()
    check_systematic(torch.float32)
    check_systematic(torch.int8)
    print("all checks passed")
