import math

import pytest
import torch
import torch.nn.functional as F

from outsize.hashing import hash_ids
from outsize.spec import TableSpec
from outsize.tables import DHETable, build_table

SPEC = TableSpec("table", num_rows=10_000, dim=64)


@pytest.mark.parametrize(
    ("limit", "width", "num_params"), [(64_192, 136, 64_192), (64_000, 135, 63_315)]
)
def test_the_width_is_solved_from_the_budget(limit, width, num_params):
    table = build_table("dhe", SPEC, max_params=limit)
    assert table.hashes.shape[0] == width
    assert table.memory_use().num_parameters == num_params


def test_hash_functions_are_counted_in_bytes():
    use = DHETable(SPEC, width=10).memory_use()
    assert use.bytes_of("index") == 10 * 9 * 8


def test_vectors_are_computed_from_hashes_of_the_id():
    table = DHETable(TableSpec("table", num_rows=100, dim=3), width=5).double()
    first, second, third = table.layers
    for i in (0, 42, 99):
        hashed = hash_ids(torch.tensor(i), table.hashes, 2**24).tolist()
        x = torch.tensor([2 * h / (2**24 - 1) - 1 for h in hashed], dtype=torch.float64)
        hidden = F.mish(F.mish(F.mish(x @ first) @ second) @ third)
        expected = torch.stack([(hidden * column).sum() for column in table.output.T])
        torch.testing.assert_close(table(torch.tensor(i)), expected, rtol=1e-5, atol=1e-7)


def test_inputs_fill_the_range_from_minus_one_to_one():
    table = DHETable(TableSpec("table", num_rows=1000, dim=1), width=1)
    with torch.no_grad():
        table.output.fill_(1.0)
        table.layers = torch.nn.ParameterList()
        inputs = table(torch.arange(1000))
    assert -1 <= inputs.min() < -0.98
    assert 0.98 < inputs.max() <= 1


def test_a_vector_does_not_depend_on_the_batch_but_for_rounding():
    table = build_table("dhe", SPEC, max_params=64_000)
    ids = torch.tensor([[3, 3, 9999], [7, 0, 3]])
    vectors = table(ids)
    assert vectors.shape == (2, 3, 64)
    assert table(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 64)
    for place, i in enumerate(ids.flatten()):
        torch.testing.assert_close(vectors.view(6, 64)[place], table(i))


def test_layers_keep_the_variance():
    table = DHETable(SPEC, width=300)
    hidden = hash_ids(torch.arange(500), table.hashes, 2**24) / 2**23 - 1
    for layer in table.layers:
        hidden = hidden @ layer
        assert 0.8 < hidden.square().mean().sqrt() < 1.25
        hidden = F.mish(hidden)


def test_xaviers_draw_is_uniform():
    table = DHETable(SPEC, width=100, papers_init=True)
    for weight in [*table.layers, table.output]:
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.99 * bound < weight.abs().max() <= bound
