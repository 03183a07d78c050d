import pytest
import torch

import outsize
from outsize.errors import ConfigError
from outsize.spec import Budget, TableSpec
from outsize.tables import FullTable, diagnose_pointers, quantize
from outsize.tables.columns import column_widths


def clustered(num_rows=2000, dim=8, clusters=16):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(clusters, dim, generator=generator)
    labels = torch.randint(clusters, (num_rows,), generator=generator)
    return centres[labels] + 0.001 * torch.randn(num_rows, dim, generator=generator)


@pytest.mark.parametrize("columns", [1, 2, 4, 3])
def test_a_clustered_table_is_kept_nearly_whole(columns):
    embedding = torch.nn.Embedding.from_pretrained(clustered())
    table = quantize(embedding, columns=columns, codes=16)
    assert (table(torch.arange(2000)) - embedding.weight).abs().max() < 0.02
    assert table.memory_use().num_parameters == 16 * 8
    assert table.memory_use().bytes_of("index") == 2000 * columns


def test_each_column_gets_its_nearest_code():
    embedding = torch.nn.Embedding(300, 7)
    table = quantize(embedding, columns=3, codes=9, seed=4)
    first = 0
    for column, width in enumerate(column_widths(7, 3)):
        part = embedding.weight[:, first : first + width]
        codes = table.weight[:, first : first + width]
        expected = torch.cdist(part, codes).argmin(dim=1)
        assert torch.equal(table.pointers_of(torch.arange(300))[:, column], expected)
        first += width


def test_more_codes_err_less():
    embedding = torch.nn.Embedding(500, 8)
    errors = [
        (quantize(embedding, codes=codes)(torch.arange(500)) - embedding.weight).square().mean()
        for codes in (2, 8, 64, 500)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-10


def test_any_table_can_be_quantized_and_is_one_again():
    full = FullTable(TableSpec("item", 400, 8, dtype=torch.bfloat16))
    table = outsize.quantize(full, columns=2, codes=1000)
    assert table.spec == full.spec
    assert table.weight.shape == (400, 8)
    assert table.pointers.dtype == torch.int16
    assert table(torch.tensor([[1, 2]])).shape == (1, 2, 8)
    assert torch.equal(
        table.decode(table.encode(torch.tensor([3, 5]))), table(torch.tensor([3, 5]))
    )
    with pytest.raises(ConfigError, match=r"use outsize\.quantize"):
        type(table).within(full.spec, Budget())


def test_popular_ids_are_kept_more_exactly():
    embedding = torch.nn.Embedding(1000, 4)
    counts = torch.ones(1000, dtype=torch.int64)
    counts[:4] = 10**6
    table = quantize(embedding, columns=1, codes=8, counts=counts)
    error = (table(torch.arange(1000)) - embedding.weight).square().sum(dim=1)
    assert error[:4].max() < 1e-3 < error[4:].mean()


@pytest.mark.parametrize("options", [{"codes": 0}, {"columns": 9}, {"columns": 0}])
def test_impossible_shapes_are_refused(options):
    with pytest.raises(ConfigError, match="'embedding'"):
        quantize(torch.nn.Embedding(10, 8), **options)


def test_its_pointers_are_the_yardstick_of_a_diagnosis():
    embedding = torch.nn.Embedding.from_pretrained(clustered())
    quantized = quantize(embedding, codes=32).pointers
    diagnosis = diagnose_pointers(quantized, 32, quantized)
    assert diagnosis.entropies == diagnosis.quantized
    assert diagnosis.warning == ""
