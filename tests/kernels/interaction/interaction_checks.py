"""Vectors with which the kernels are compared with torch."""

import torch

# Vectors, width, and whether there is a first one besides.
SHAPES = [
    (26, 16, True), (27, 16, False), (2, 1, False), (1, 7, True), (15, 33, True), (16, 20, True),
    (63, 8, True), (3, 128, False), (1, 5, False),
]  # fmt: skip


def plain(vectors, first):
    """What the kernel computes, in float64."""
    vectors = vectors.double()
    if first is not None:
        vectors = torch.cat((first.double().unsqueeze(1), vectors), dim=1)
    num = vectors.shape[1]
    row, column = torch.tril_indices(num, num, offset=-1).to(vectors.device)
    products = (vectors @ vectors.transpose(1, 2))[:, row, column]
    return products if first is None else torch.cat((first.double(), products), dim=1)


def assert_products_and_gradients_are_exact(device="cpu", batch=3):
    """Within the rounding of float32 sums, or of the bfloat16 that they are rounded to."""
    from outsize.kernels.interaction.interaction_triton import (
        fits_registers,
        gradients_by_triton,
        interact_by_triton,
    )

    draw = torch.Generator().manual_seed(0)
    for dtype, close in ((torch.float32, 2e-6), (torch.bfloat16, 1e-2)):
        for num, dim, has_first in SHAPES:
            vectors = torch.randn(dim, batch, num, generator=draw).to(device, dtype)
            vectors = vectors.permute(1, 2, 0).requires_grad_()
            first = None
            if has_first:
                first = torch.randn(batch, dim, generator=draw).to(device, dtype).requires_grad_()
            assert fits_registers(vectors, first)
            expected = plain(vectors, first)
            found = interact_by_triton(vectors.detach(), None if first is None else first.detach())
            assert found.dtype == dtype
            size = dim**0.5 * 4
            torch.testing.assert_close(found.double(), expected, atol=close * size, rtol=close)
            weights = torch.randn(*expected.shape, generator=draw).to(device, dtype)
            leaves = [vectors] if first is None else [vectors, first]
            gradients = torch.autograd.grad(expected, leaves, weights.double())
            ours = gradients_by_triton(weights, *(leaf.detach() for leaf in leaves), *(
                [None] if first is None else []))  # fmt: skip
            assert (ours[1] is None) == (first is None)
            for one, known in zip(ours, gradients, strict=False):
                assert one.dtype == dtype
                error = (one.double() - known.double()).abs().max() if known.numel() else 0.0
                assert error < close * 8 * (num + 1) ** 0.5
    nothing = interact_by_triton(torch.zeros(0, 4, 8, device=device), None)
    assert nothing.shape == (0, 6)
    assert gradients_by_triton(nothing, torch.zeros(0, 4, 8, device=device), None)[0].numel() == 0
    assert not fits_registers(torch.zeros(1, 65, 8), None)
    assert not fits_registers(torch.zeros(1, 3, 129), None)
    assert not fits_registers(torch.zeros(1, 3, 8), torch.zeros(1, 8, dtype=torch.bfloat16))
