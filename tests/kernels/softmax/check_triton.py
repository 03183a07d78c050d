"""Checks of the Triton path on CPU tensors, run as a script under Triton's interpreter."""

from dataclasses import replace

import numpy as np
import torch
import triton.language as tl
from draw_checks import assert_drawn_from, exact_logits, held_keys, normal, scored_items
from interpreted import mend_interpreter
from reference_draws import draw_by_inversion
from triton.runtime import interpreter

from outsize.kernels.directory.lookup import keys_and_ages, rows_holding
from outsize.kernels.directory.lookup_triton import keys_and_ages_by_triton, rows_holding_by_triton
from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax import tuning
from outsize.kernels.softmax.draws import ScoredItems, softmax_mean
from outsize.kernels.softmax.held_draws import HeldKeys
from outsize.kernels.softmax.inversion import systematic_uniforms
from outsize.kernels.softmax.triton import draw_launches, mean_launches
from outsize.kernels.softmax.triton.draw_launches import draw_by_triton, draw_held_by_triton
from outsize.kernels.softmax.triton.mean_launches import mean_by_triton
from outsize.kernels.softmax.tuning import SoftmaxTuning

SMALL = SoftmaxTuning(query_tile=16, item_tile=64, depth=16, block=16, draw_depth=16)
IN_TURNS = replace(SMALL, programs_per_processor=1, flatten=True)


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
    for width in (2, 40):  # sorted by the kernel that prepares queries, and by torch
        check_heavy_item_excluded(width, num_queries=40)
    tuning._MAX_MASS_BYTES = kept


def check_heavy_item_excluded(width, num_queries):
    """An item with half of the mass of its block is never drawn where it is excluded."""
    log_weights = torch.full((300,), -9.0)
    log_weights[[100, 101]] = 9.0
    items = scored_items(300, 8, log_weights=log_weights)
    excluded = torch.full((num_queries, width), -1)
    excluded[:, 1] = 100
    queries = normal(num_queries, 8, seed=3)
    draws = draw_by_triton(queries, items, 4, torch.Generator(), excluded, SMALL)
    assert ((draws.rows >= 0) & (draws.rows != 100)).all()


def check_nothing_to_draw():
    items = scored_items(40, 8)
    excluded = torch.arange(40).expand(2, -1).contiguous()
    excluded[1] = -1
    draws = draw_by_triton(normal(2, 8), items, 2, torch.Generator(), excluded, SMALL)
    assert (draws.rows[0] == -1).all()
    assert draws.log_partition[0] == -torch.inf
    assert (draws.rows[1] >= 0).all()
    assert draws.log_partition[1].isfinite()


def check_memory_layouts(dtype):
    """Matrices that were transposed, and vectors that are columns, are what they are elsewhere."""
    items, queries = scored_items(300, 136, dtype), normal(5, 136, seed=5) / 4

    def as_column(values):
        return None if values is None else values.repeat(2, 1).t().contiguous()[:, 1]

    strided = ScoredItems(
        items.vectors.t().contiguous().t(), as_column(items.scales), as_column(items.log_weights)
    )
    across = queries.t().contiguous().t()
    expected, found = (
        draw_by_triton(some, of, 2, torch.Generator(), None, SMALL)
        for some, of in ((queries, items), (across, strided))
    )
    assert torch.equal(found.rows, expected.rows)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.log_partition, expected.log_partition)
    mean = mean_by_triton(queries, items, expected.log_partition)
    for some, of in ((across, items), (queries, strided)):
        assert torch.equal(mean_by_triton(some, of, expected.log_partition), mean)


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


def check_mean(dtype, num_queries=20, num_items=3000, dim=16, close=2e-5, num_excluded=None):
    """Items in several parts, some weighing nothing, all of them excluded for one query.

    With few exclusions, shares and their product come from one kernel.
    """
    log_weights = normal(num_items, seed=9)
    log_weights[1::3] = -torch.inf
    items = scored_items(num_items, dim, dtype, log_weights=log_weights)
    queries = normal(num_queries, dim, seed=5)
    excluded = torch.randint(-1, num_items + 3, (num_queries, num_items))
    excluded[0] = torch.arange(num_items)
    excluded = excluded[:, :num_excluded].contiguous()
    log_partition = exact_logits(queries, items, excluded).logsumexp(dim=1).float()
    queries[1, 0], log_partition[1] = torch.nan, torch.nan
    with np.errstate(over="ignore"):
        found = mean_by_triton(queries, items, log_partition, excluded)
    expected = softmax_mean(queries, items, log_partition, excluded)
    torch.testing.assert_close(found, expected, atol=close, rtol=5 * close, equal_nan=True)
    assert num_excluded is not None or (found[0] == 0).all()
    assert found[1].isnan().all()


def check_places_of_flags():
    """Flags of tiles by queries may be more than 2³¹, so their places have 64 bits."""
    builder, types = interpreter.InterpreterBuilder, []
    add = builder.create_addptr

    def recording(self, pointer, offset):
        if pointer.get_element_ty() == tl.int8:
            types.append(offset.dtype.scalar)
        return add(self, pointer, offset)

    builder.create_addptr = recording
    check_mean(torch.bfloat16, close=2e-4, num_excluded=1)
    builder.create_addptr = add
    assert len(types) > 0
    assert set(types) == {tl.int64}


def check_held_rows():
    held, lists = held_keys(90)
    keys = torch.randint(-2, 200, (7, 40)).clamp_(min=-1)
    assert torch.equal(rows_holding_by_triton(keys, held, lists), rows_holding(keys, held, lists))
    rows, encoded_at = torch.randint(-1, 90, (5, 60)), torch.arange(90) * 7
    found = keys_and_ages_by_triton(rows, held, encoded_at, 1000)
    for ours, expected in zip(found, keys_and_ages(rows, held, encoded_at, 1000), strict=True):
        assert torch.equal(ours, expected)


def check_held_draws(dtype, systematic=False, width=2, num_items=90, dim=20):
    """Draws from a cache say what it holds of each; listed keys are not among them."""
    held, lists = held_keys(num_items)
    items = scored_items(num_items, dim, dtype)
    weights = torch.where(held >= 0, items.log_weights, -torch.inf)
    items = ScoredItems(items.vectors, items.scales, weights)
    encoded_at = torch.arange(num_items) * 7
    queries, keys = normal(5, dim, seed=5), torch.randint(-1, 150, (5, width))
    beta = torch.tensor(0.7) if systematic else 0.7
    found = draw_held_by_triton(
        queries,
        beta,
        items,
        HeldKeys(held, encoded_at, 1000, lists),
        6,
        torch.Generator(),
        Ragged.of(keys),
        systematic,
        SMALL,
    )
    rows = rows_holding(keys, held, lists)
    logits = exact_logits(queries * 0.7, items, rows)
    draws = found.draws
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    assert (draws.rows >= 0).all()
    drawn = logits.gather(1, draws.rows).float()
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)
    expected = keys_and_ages(draws.rows, held, encoded_at, 1000)
    assert torch.equal(found.keys, expected[0])
    assert torch.equal(found.ages, expected[1])
    vectors = items.vectors.float()
    vectors = vectors if items.scales is None else vectors * items.scales.unsqueeze(1)
    assert torch.equal(found.embeddings, vectors[draws.rows])
    assert ((found.uniforms >= 0) & (found.uniforms < 1)).all()
    assert found.uniforms.unique().numel() == 30


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
    mean_launches.FUSED_TILE = (32, 128, 4, 2)
    check_mean(torch.bfloat16, num_excluded=3)
    check_mean(torch.int8, num_excluded=0, num_items=300, dim=13)
    mean_launches._MANY_ITEMS = 0  # only tiles with a heavy item are split
    check_mean(torch.bfloat16, close=2e-4)
    check_places_of_flags()
    check_held_rows()
    check_held_draws(torch.float32)
    check_held_draws(torch.bfloat16, systematic=True, width=1)
    check_held_draws(torch.int8, width=3)
    draw_launches._MAX_WIDTH, kept = 1, draw_launches._MAX_WIDTH
    check_held_draws(torch.float32)  # lists that are sorted before
    check_logits(70, 16, torch.float32, SMALL)
    draw_launches._MAX_WIDTH = kept
    check_many_queries()
    check_nothing_to_draw()
    check_not_finite()
    check_memory_layouts(torch.bfloat16)
    check_memory_layouts(torch.int8)
    check_draws()
    check_systematic(torch.float32)
    check_systematic(torch.int8)
    print("all checks passed")
