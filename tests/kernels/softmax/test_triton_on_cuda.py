"""Settings of the kernels change how long draws take, never what they are drawn from."""

import sys
from dataclasses import replace

import pytest
import torch
from draw_checks import DTYPES, exact_logits, normal, on_cuda, scored_items

from outsize.kernels.softmax.draws import ScoredItems, draw_from_softmax, softmax_mean
from outsize.kernels.softmax.tuning import SoftmaxTuning

SMALL = SoftmaxTuning(query_tile=64, item_tile=128, num_warps=4, num_stages=2)


@pytest.mark.gpu
@pytest.mark.parametrize("block", [16, 128])
@pytest.mark.parametrize(
    "tuning",
    [
        SMALL,
        replace(SMALL, programs_per_processor=1),
        replace(SMALL, programs_per_processor=2, flatten=True),
        replace(SMALL, descriptors=True),
        replace(SMALL, descriptors=True, programs_per_processor=1, flatten=True),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_setting_gives_the_same_log_partition(dtype, tuning, block):
    pytest.importorskip("triton")
    from outsize.kernels.softmax.triton.draw_launches import draw_by_triton

    queries, items = normal(150, 96, seed=5), scored_items(70_001, 96, dtype)
    excluded = torch.randint(-1, 70_001, (150, 3))
    logits = exact_logits(queries, items, excluded)
    settings = replace(tuning, block=block, draw_depth=2048 // block)
    draws = on_cuda(draw_by_triton)(queries, items, 2, torch.Generator(), excluded, settings)
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    drawn = logits.gather(1, draws.rows).float()
    torch.testing.assert_close(draws.logits, drawn, atol=1e-4, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("dim", [24, 64, 128, 200])
@pytest.mark.parametrize("is_peaked", [False, True])
def test_the_mean_of_many_items_with_and_without_heavy_ones(dtype, dim, is_peaked):
    pytest.importorskip("triton")
    queries, items = normal(150, dim, seed=5) / dim**0.5, scored_items(300_001, dim, dtype)
    if is_peaked:  # a thousand items have most of the mass
        weights = items.log_weights.clone()
        weights[::300] += 9
        items = ScoredItems(items.vectors, items.scales, weights)
    excluded = torch.randint(-1, 300_001, (150, 2))
    logits = exact_logits(queries, items, excluded)
    vectors = items.vectors.double()
    vectors = vectors if items.scales is None else vectors * items.scales.double().unsqueeze(1)
    shares = logits.softmax(dim=1)
    log_partition = logits.logsumexp(dim=1).float()
    found = on_cuda(softmax_mean)(queries, items, log_partition, excluded)
    error = (found.double() - shares @ vectors).abs()
    assert (error <= largest_error_of_mean(shares, vectors)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_that_were_launched_before_read_what_they_are_given_now(dtype):
    pytest.importorskip("triton")
    items = scored_items(5003, 24, dtype)
    scales = None if items.scales is None else items.scales.cuda()
    on_gpu = ScoredItems(items.vectors.cuda(), scales, items.log_weights.cuda())
    generator = torch.Generator("cuda").manual_seed(0)
    # A part that starts at an odd row is not aligned in memory.
    for first, num_queries, num in ((0, 40, 2), (0, 40, 2), (1, 40, 2), (0, 17, 1), (3, 40, 2)):
        queries = normal(num_queries, 24, seed=first)
        some = slice(first, 5000 + first % 2)
        logits = exact_logits(queries, items.part(some))
        draws = draw_from_softmax(queries.cuda(), on_gpu.part(some), num, generator, None, True)
        expected = logits.logsumexp(dim=1).float()
        torch.testing.assert_close(draws.log_partition.cpu(), expected, atol=1e-4, rtol=1e-5)
        drawn = logits.gather(1, draws.rows.cpu()).float()
        torch.testing.assert_close(draws.logits.cpu(), drawn, atol=1e-4, rtol=1e-5)


def largest_error_of_mean(shares, vectors):
    """Six standard deviations of the rounding of light shares to bfloat16, and of float32 sums.

    The rounding of a share is off by up to 2⁻⁹ of it, as if drawn uniformly. That of shares above
    2⁻¹² is made up for, up to 2⁻¹⁷.
    """
    light = shares.masked_fill(shares > 2.0**-12, 0.0)
    deviation = 2.0**-9 / 3**0.5 * (light.square() @ vectors.square()).sqrt()
    return 6 * deviation + 2e-5 * (shares @ vectors.abs())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_draws_on_the_device_where_kernels_are_not_to_be_used(dtype, monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    for name in ("draw_launches", "mean_launches"):
        monkeypatch.setitem(sys.modules, f"outsize.kernels.softmax.triton.{name}", None)
    queries, items = normal(20, 24, seed=5), scored_items(3000, 24, dtype)
    excluded = torch.randint(-1, 3000, (20, 2))
    logits = exact_logits(queries, items, excluded)
    draws = on_cuda(draw_from_softmax)(queries, items, 2, torch.Generator(), excluded, True)
    expected = logits.logsumexp(dim=1).float()
    torch.testing.assert_close(draws.log_partition, expected, atol=1e-4, rtol=1e-5)
    mean = on_cuda(softmax_mean)(queries, items, expected, excluded)
    torch.testing.assert_close(mean, draws.mean, atol=1e-3, rtol=1e-3)
