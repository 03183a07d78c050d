"""B × N numbers are never held."""

import pytest
import torch
from draw_checks import DTYPES, normal, scored_items
from reference_draws import draw_by_gumbel_max
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from outsize.kernels.ragged import Ragged
from outsize.kernels.softmax.best_items import top_items
from outsize.kernels.softmax.draws import draw_from_softmax, softmax_mean


class LargestMade(TorchDispatchMode):
    """Remembers the bytes of the largest storage that any operation returned."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.max_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.max_bytes = max(self.max_bytes, storage.nbytes())
        return result


def largest_made(function, queries, items, *arguments):
    known = [queries, items.vectors, items.log_weights]
    with LargestMade(known if items.scales is None else [*known, items.scales]) as largest:
        function(queries, items, *arguments)
    return largest.max_bytes


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tensor_comes_near_the_scores_of_all_items(dtype):
    queries, items = normal(64, 24), scored_items(100_000, 24, dtype)
    all_scores = 64 * 100_000 * 4
    generator = torch.Generator()
    excluded = torch.zeros(64, 2).long()
    for function, arguments in (
        (draw_from_softmax, (16, generator, excluded)),
        (draw_from_softmax, (16, generator, excluded, True)),
        (softmax_mean, (torch.zeros(64), excluded)),
        (top_items, (10, excluded)),
    ):
        assert largest_made(function, queries, items, *arguments) <= 4 << 20 < all_scores / 6


def test_the_measure_sees_scores_that_are_held():
    queries, items = normal(8, 4), scored_items(1000, 4)
    assert largest_made(draw_by_gumbel_max, queries, items, 1, torch.Generator()) >= 8 * 1000 * 4


def test_one_long_list_makes_nothing_as_large_as_that_list_for_every_query():
    num_long = 60_000
    lists = Ragged.from_sizes(torch.arange(num_long), torch.tensor([num_long] + [0] * 511))
    queries, items = normal(512, 4), scored_items(100_000, 4)
    for function, arguments in (
        (draw_from_softmax, (2, torch.Generator(), lists)),
        (draw_from_softmax, (2, torch.Generator(), lists, True)),
        (softmax_mean, (torch.zeros(512), lists)),
        (top_items, (10, lists)),
    ):
        assert largest_made(function, queries, items, *arguments) < 16 << 20 < num_long * 512 * 8
