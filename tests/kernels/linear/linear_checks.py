"""Gradients with which the kernel is compared with torch."""

import torch
import torch.nn.functional as F

SHAPES = [(1, 1), (7, 3), (40, 130), (2050, 16), (300, 64), (33, 257)]


def assert_passed_gradients_are_those_of_torch(device="cpu", lines=1):
    """What passes is the same, its sums within the rounding of float32."""
    from outsize.kernels.linear.linear_relu_triton import passed_gradients_by_triton

    draw = torch.Generator().manual_seed(0)
    for num_lines, width in SHAPES:
        gradients = torch.randn(width, lines * num_lines, generator=draw).to(device).t()
        outputs = torch.randn(lines * num_lines, width, generator=draw).to(device).relu()
        passed, sums = passed_gradients_by_triton(gradients, outputs)
        assert torch.equal(passed, gradients * (outputs > 0))
        assert passed.is_contiguous()
        size = passed.double().abs().sum(dim=0)
        expected = passed.double().sum(dim=0)
        assert ((sums.double() - expected).abs() <= 1e-6 * size + 1e-12).all()
        again = passed_gradients_by_triton(gradients, outputs)
        assert torch.equal(again[1], sums)


def assert_nan_passes(device="cpu"):
    """A NaN goes on as torch's ReLU lets it go on: it must be found."""
    from outsize.kernels.linear.linear_relu_triton import passed_gradients_by_triton

    outputs = torch.tensor([[1.0, 0.0, float("nan")]], device=device).requires_grad_()
    gradients = torch.tensor([[float("nan"), float("nan"), 2.0]], device=device)
    (expected,) = torch.autograd.grad(F.relu(outputs), outputs, gradients)
    passed, sums = passed_gradients_by_triton(gradients, outputs.detach())
    torch.testing.assert_close(passed, expected, equal_nan=True)
    torch.testing.assert_close(sums, expected[0], equal_nan=True)


def check_layer(device="cpu"):
    """The layer returns what torch's do, with gradients, and gradients of gradients."""
    from outsize.kernels.linear import linear_relu as op

    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(20, 5, generator=draw).to(device).requires_grad_()
    weight = torch.randn(7, 5, generator=draw).to(device).requires_grad_()
    bias = torch.randn(7, generator=draw).to(device).requires_grad_()
    every = (inputs, weight, bias)
    for chosen in ((0, 1, 2), (1,), (0,), (1, 2)):
        leaves = [every[place] for place in chosen]
        given = [each if place in chosen else each.detach() for place, each in enumerate(every)]
        found, expected = op.linear_relu(*given), F.relu(F.linear(*given))
        assert found.grad_fn.name() == "_LinearReLUBackward"
        torch.testing.assert_close(found, expected)
        for is_twice in (False, True):
            ours, known = (
                torch.autograd.grad(each.square().sum(), leaves, create_graph=is_twice)
                for each in (op.linear_relu(*given), F.relu(F.linear(*given)))
            )
            torch.testing.assert_close(ours, known, rtol=1e-4, atol=1e-4)
        second = [
            torch.autograd.grad(sum(g.square().sum() for g in each), leaves)
            for each in (ours, known)
        ]
        torch.testing.assert_close(*second, rtol=1e-4, atol=1e-3)


def assert_products_are_as_exact_as_those_of_torch(
    device="cpu", sizes=((70, 64, 32), (130, 128, 96))
):
    """Against float64, for batches that are no whole tiles; NaN and infinity stay."""
    from outsize.kernels.linear.linear_relu_triton import is_multiplied_fast, linear_relu_by_triton

    draw = torch.Generator().manual_seed(2)
    for batch, fan_out, fan_in in sizes:
        inputs = torch.randn(batch, fan_in, generator=draw).to(device)
        weight = torch.randn(fan_out, fan_in, generator=draw).to(device)
        bias = torch.randn(fan_out, generator=draw).to(device)
        assert is_multiplied_fast(inputs, weight)
        found = linear_relu_by_triton(inputs, weight, bias)
        exact = F.linear(inputs.double(), weight.double(), bias.double()).relu()
        size = F.linear(inputs.double().abs(), weight.double().abs(), bias.double().abs())
        assert ((found.double() - exact).abs() <= 1e-6 * size).all()
        assert not is_multiplied_fast(inputs, weight[:-1])
        assert not is_multiplied_fast(inputs[:, :-1], weight[:, :-1])
        inputs[3, 5], inputs[-1, 0] = float("nan"), float("inf")
        found = linear_relu_by_triton(inputs, weight, bias)
        assert found[3].isnan().all()
        passed = weight[:, 0] > 0
        assert found[-1, passed].isposinf().all()
        assert (found[-1, ~passed] == 0).all()
        assert found[:3].isfinite().all()
