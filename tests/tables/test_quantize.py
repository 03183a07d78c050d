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


def test_k_means_stops_at_a_tolerance():
    table = FullTable(TableSpec("ad", num_rows=500, dim=4))
    loose, exact = (quantize(table, columns=2, codes=16, tolerance=t) for t in (0.1, 0.0))
    few = [quantize(table, columns=2, codes=16, iterations=number) for number in range(1, 20)]
    # Each column stops by itself.
    for column in (slice(0, 2), slice(2, 4)):
        assert any(torch.equal(loose.weight[:, column], q.weight[:, column]) for q in few)
    assert not torch.equal(loose.weight, exact.weight)


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


@pytest.mark.parametrize("codes", [2, 3, 8, 257, 1000])
@pytest.mark.parametrize("value", [0.0, 1000.0])
def test_a_padding_row_keeps_its_vector_exactly_whatever_the_codes(codes, value):
    embedding = torch.nn.Embedding(400, 8, padding_idx=5)
    with torch.no_grad():
        embedding.weight += 3.0
        embedding.weight[5] = value
    table = quantize(embedding, columns=3, codes=codes)
    ids = torch.tensor([5, 4, 5])
    for vectors in (table(ids), table.decode(table.encode(ids)), table.materialize()(ids)):
        assert torch.equal(vectors[0], embedding.weight[5])
        assert torch.equal(vectors[2], embedding.weight[5])
        assert not torch.equal(vectors[1], embedding.weight[5])
    assert table.weight.shape[0] == min(codes, 400) - 1
    assert table.materialize().padding_idx == 5
    assert quantize(table, codes=codes).padding_id == 5
    assert table.weight.max() < 100  # no centroid knows the padding row
    loaded = quantize(torch.nn.Embedding(400, 8, padding_idx=5), columns=3, codes=codes)
    loaded.load_state_dict(table.state_dict())
    assert torch.equal(loaded(ids), table(ids))


def test_a_padding_row_is_not_trained():
    table = quantize(torch.nn.Embedding(50, 4, padding_idx=0), codes=10)
    optimizer = torch.optim.AdamW(table.parameters(), lr=0.1, weight_decay=0.5)
    others = table(torch.arange(1, 50)).detach()
    for _ in range(5):
        optimizer.zero_grad()
        (table(torch.arange(50)) - 1).square().sum().backward()
        optimizer.step()
    assert torch.equal(table(torch.tensor([0])), torch.zeros(1, 4))
    assert not torch.isclose(table(torch.arange(1, 50)), others).any()
    optimizer.zero_grad()
    table(torch.tensor([0, 0])).sum().backward()
    assert not table.weight.grad.any()


@pytest.mark.parametrize("assign", [True, False])
def test_a_padding_row_is_loaded_into_a_table_made_on_the_meta_device(assign):
    saved = quantize(torch.nn.Embedding(50, 4, padding_idx=7), codes=10)
    with torch.device("meta"):
        table = quantize(torch.nn.Embedding(50, 4, padding_idx=7), codes=10)
    if not assign:
        table.to_empty(device="cpu")
    table.load_state_dict(saved.state_dict(), assign=assign)
    assert torch.equal(table(torch.arange(50)), saved(torch.arange(50)))
    assert table.codes_version == saved.codes_version


def test_a_padding_row_alone_or_without_room_is_refused():
    with pytest.raises(ConfigError, match="padding row takes one code"):
        quantize(torch.nn.Embedding(50, 4, padding_idx=0), codes=1)
    with pytest.raises(ConfigError, match="padding row takes one code"):
        quantize(torch.nn.Embedding(1, 4, padding_idx=0))


def test_options_of_an_embedding_that_codes_cannot_keep_are_refused():
    with pytest.raises(ConfigError, match="max_norm=1, which codes cannot keep"):
        quantize(torch.nn.Embedding(50, 4, max_norm=1.0))
    with pytest.raises(ConfigError, match="scale_grad_by_freq"):
        quantize(torch.nn.Embedding(50, 4, scale_grad_by_freq=True))
    sparse = torch.nn.Embedding(50, 4, sparse=True)
    assert torch.allclose(quantize(sparse, codes=50)(torch.arange(50)), sparse.weight, atol=1e-6)


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
