"""Checks of the products of pairs on CPU tensors, run under Triton's interpreter."""

import torch
from interaction_checks import assert_products_and_gradients_are_exact, plain
from interpreted import mend_interpreter

from outsize.models import interaction


def check_module():
    """The module returns what the kernels compute, with gradients, and gradients of gradients."""
    interaction.uses_triton = lambda *_: True
    draw = torch.Generator().manual_seed(1)
    vectors = torch.randn(3, 4, 5, generator=draw).requires_grad_()
    for first in (torch.randn(3, 5, generator=draw).requires_grad_(), None):
        leaves = [vectors] if first is None else [vectors, first]
        module = interaction.Interaction(3 + len(leaves))
        found, expected = module(vectors, first), plain(vectors, first)
        torch.testing.assert_close(found, expected.float())
        for is_twice in (False, True):
            results = [
                torch.autograd.grad(each.square().sum(), leaves, create_graph=is_twice)
                for each in (module(vectors, first), plain(vectors, first))
            ]
            torch.testing.assert_close(*results)
        penalties = [sum(each.square().sum() for each in gradients) for gradients in results]
        ours, known = (torch.autograd.grad(penalty, leaves) for penalty in penalties)
        torch.testing.assert_close(ours, known, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    mend_interpreter()
    assert_products_and_gradients_are_exact()
    check_module()
    print("all checks passed")
