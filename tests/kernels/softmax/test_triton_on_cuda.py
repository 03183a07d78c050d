"""Settings of the kernels change how long draws take, never what they are drawn from."""

from dataclasses import replace

import pytest
import torch
from draw_checks import DTYPES, exact_logits, normal, on_cuda, scored_items

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
