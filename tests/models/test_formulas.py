"""Each click model against the formula it stands for, written out."""

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from click_inputs import make_batch, make_embeddings

from outsize.errors import ConfigError
from outsize.models import (
    DCN,
    GMF,
    DCNConfig,
    DCNv2,
    DCNv2Config,
    DeepFM,
    DeepFMConfig,
    GMFConfig,
    WideDeep,
    WideDeepConfig,
)
from outsize.models.cross import MatrixCross, VectorCross
from outsize.models.deepfm import pairwise_products
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

SIZES = {"a": 7, "b": 5, "c": 6}
WRONG: Any = "wrong"
CRITEO = {f"c{i}": 3 for i in range(26)}


def num_dense_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def generator():
    return torch.Generator().manual_seed(3)


def randomized(module):
    """Biases start at zero; an oracle must see them."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator())
    return module


def rows_of(model, ids):
    return [model.embeddings(ids)[name] for name in SIZES]


def test_pairwise_products_are_the_sum_over_all_pairs():
    vectors = torch.randn(4, 5, 3, generator=generator(), dtype=torch.float64)
    pairs = itertools.combinations(range(5), 2)
    expected = sum((vectors[:, f] * vectors[:, g]).sum(dim=1) for f, g in pairs)
    torch.testing.assert_close(pairwise_products(vectors), expected)


@pytest.mark.parametrize("deep_inputs", ["all", "vectors"])
def test_deepfm_adds_weights_products_and_an_mlp(deep_inputs):
    model = DeepFM(3, make_embeddings(SIZES), hidden=(8,), deep_inputs=deep_inputs)
    dense, ids = make_batch(SIZES, 3)
    rows = rows_of(model, ids)
    vectors = [row[:, :3] for row in rows]
    deep = torch.cat(([dense] if deep_inputs == "all" else []) + vectors, dim=1)
    expected = model.deep(deep)[:, 0] + dense @ model.dense_weights.weight[0]
    expected = expected + sum(row[:, 3] for row in rows)
    expected = expected + sum((u * v).sum(1) for u, v in itertools.combinations(vectors, 2))
    torch.testing.assert_close(model(dense, ids), expected)


def test_the_usual_wide_part_is_the_sum_of_the_weights_of_the_ids():
    model = WideDeep(3, make_embeddings(SIZES), hidden=(8,))
    dense, ids = make_batch(SIZES, 3)
    rows = rows_of(model, ids)
    deep = model.deep(torch.cat((dense, *(row[:, :3] for row in rows)), dim=1))[:, 0]
    torch.testing.assert_close(model(dense, ids), deep + sum(row[:, 3] for row in rows))


def test_the_wide_part_of_het_is_linear_in_whole_rows_and_its_deep_part_in_dense_features_only():
    model = WideDeep(3, make_embeddings(SIZES), hidden=(8,), form="het")
    dense, ids = make_batch(SIZES, 3)
    wide = torch.cat(rows_of(model, ids), dim=1) @ model.wide.weight[0]
    torch.testing.assert_close(model(dense, ids), model.deep(dense)[:, 0] + wide)


def test_a_vector_cross_is_the_outer_product_of_the_text():
    layer = randomized(VectorCross(5, generator()))
    first, x = torch.randn(2, 4, 5, generator=generator()).unbind()
    w = layer.weight.weight[0]
    for i in range(4):
        expected = torch.outer(first[i], x[i]) @ w + layer.bias + x[i]
        torch.testing.assert_close(layer(first, x)[i], expected)


@pytest.mark.parametrize("rank", [None, 2])
def test_a_matrix_cross_multiplies_by_a_matrix_of_that_rank(rank):
    layer = randomized(MatrixCross(5, rank, generator()))
    first, x = torch.randn(2, 4, 5, generator=generator()).unbind()
    matrix = layer.weight.weight if rank is None else layer.weight.weight @ layer.down.weight
    assert torch.linalg.matrix_rank(matrix) == (rank or 5)
    for i in range(4):
        expected = first[i] * (matrix @ x[i] + layer.bias) + x[i]
        torch.testing.assert_close(layer(first, x)[i], expected)


def crossed(network, x):
    result = x
    for layer in network.crosses:
        result = layer(x, result)
    return result


def test_dcn_joins_crosses_and_an_mlp_side_by_side():
    model = DCN(3, make_embeddings(SIZES), num_crosses=2, hidden=(8, 4))
    dense, ids = make_batch(SIZES, 3)
    x = torch.cat((dense, *rows_of(model, ids)), dim=1)
    network = model.network
    joined = torch.cat((crossed(network, x), network.deep(x)), dim=1)
    torch.testing.assert_close(model(dense, ids), network.output(joined)[:, 0])


def test_dcnv2_stacks_its_mlp_on_the_crosses():
    model = DCNv2(3, make_embeddings(SIZES), num_crosses=2, hidden=(8, 4))
    dense, ids = make_batch(SIZES, 3)
    x = torch.cat((dense, *rows_of(model, ids)), dim=1)
    network = model.network
    expected = network.output(network.deep(crossed(network, x)))[:, 0]
    torch.testing.assert_close(model(dense, ids), expected)


@pytest.mark.parametrize("structure", ["parallel", "stacked"])
def test_without_hidden_layers_the_logit_is_linear_in_the_crosses(structure):
    model = DCNv2(3, make_embeddings(SIZES), num_crosses=2, hidden=(), structure=structure)
    dense, ids = make_batch(SIZES, 3)
    x = torch.cat((dense, *rows_of(model, ids)), dim=1)
    expected = model.network.output(crossed(model.network, x))[:, 0]
    torch.testing.assert_close(model(dense, ids), expected)


def test_gmf_is_a_weighted_inner_product():
    sizes = {"user": 7, "item": 5}
    model = GMF(0, make_embeddings(sizes))
    dense, ids = make_batch(sizes, 0)
    found = model.embeddings(ids)
    expected = (found["user"] * found["item"]) @ model.output.weight[0] + model.output.bias
    torch.testing.assert_close(model(dense, ids), expected)


@pytest.mark.parametrize(
    ("model", "dim", "expected"),
    [
        (WideDeep, 128, 13 * 256 + 2 * 256**2 + 256 + 26 * 128),
        (DeepFM, 128 + 1, 26 * 128 * 256 + 256**2 + 256 + 13),
        (DCN, 128, 3341 * 256 + 2 * 256**2 + 6 * 3341 + 3341 + 256),
    ],
)
def test_the_shapes_of_het_have_the_parameters_of_its_table_3(model, dim, expected):
    assert expected in (137_984, 917_773, 1_010_011)
    built = model.het(num_dense=13, embeddings=make_embeddings(CRITEO, dim))
    assert num_dense_parameters(built) == expected
    names = [name for name, _ in built.named_parameters() if name.endswith("bias")]
    assert all(".crosses." in name for name in names)
    assert len(names) == (3 if model is DCN else 0)
    assert built(*make_batch(CRITEO, 13)).shape == (6,)


@pytest.mark.parametrize(
    ("rank", "structure", "expected"),
    [
        (None, "stacked", 2 * (15 * 15 + 15) + (15 * 8 + 8) + (8 + 1)),
        (None, "parallel", 2 * (15 * 15 + 15) + (15 * 8 + 8) + (15 + 8 + 1)),
        (4, "stacked", 2 * (2 * 15 * 4 + 15) + (15 * 8 + 8) + (8 + 1)),
    ],
)
def test_dcnv2_has_the_parameters_of_its_shape(rank, structure, expected):
    config = DCNv2Config(num_crosses=2, rank=rank, hidden=(8,), structure=structure)
    model = config.build(3, make_embeddings(SIZES), seed=0)
    assert num_dense_parameters(model) == expected


REFUSALS = {
    "no vector": (DeepFMConfig(), 0, SIZES, 1, "the rows have dim 1"),
    "no vector, wide": (WideDeepConfig(), 0, SIZES, 1, "the rows have dim 1"),
    "nothing to read": (WideDeepConfig.het(), 0, SIZES, 4, "num_dense is 0"),
    "rank": (DCNv2Config(rank=12), 0, SIZES, 4, "rank 12 does not lower a matrix of 12 × 12"),
    "three features": (GMFConfig(), 0, SIZES, 4, r"has 3 \(a, b, c\)"),
    "dense": (GMFConfig(), 2, {"a": 3, "b": 3}, 4, "GMF reads no dense features, .* has 2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_data_a_model_cannot_read_is_refused(name):
    config, num_dense, sizes, dim, message = REFUSALS[name]
    with pytest.raises(ConfigError, match=message):
        config.build(num_dense, make_embeddings(sizes, dim), seed=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WideDeepConfig(hidden=(8, 0)), r"hidden must hold widths >= 1, but got \(8, 0\)"),
        (lambda: DeepFMConfig(hidden=(0,)), "hidden"),
        (lambda: DCNConfig(num_crosses=0), "num_crosses must be between 1 and 1,024, but got 0"),
        (lambda: DCNv2Config(num_crosses=0), "num_crosses must be between 1 and 1,024, but got 0"),
        (lambda: DCNv2Config(rank=0), "rank must be >= 1, but got 0"),
        (lambda: WideDeepConfig(form=WRONG), "form must be one of usual, het, but got 'wrong'"),
        (lambda: DeepFMConfig(deep_inputs=WRONG), "deep_inputs must be one of all, vectors"),
        (lambda: DCNv2Config(structure=WRONG), "structure must be one of parallel, stacked"),
        (lambda: WideDeep(0, make_embeddings(SIZES), form=WRONG), "form must be one of"),
        (lambda: DeepFM(0, make_embeddings(SIZES), hidden=(0,)), "hidden"),
        (lambda: DCN(0, make_embeddings(SIZES), num_crosses=0), "num_crosses"),
        (lambda: DCNv2(0, make_embeddings(SIZES), structure=WRONG), "structure"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_impossible_shapes_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "config"),
    [("wide-deep", WideDeepConfig.het()), ("deepfm", DeepFMConfig.het()), ("dcn", DCNConfig.het())],
)
def test_the_run_files_of_the_docs_hold_the_shapes_of_het(kind, config):
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    trees = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    (tree,) = [tree for tree in trees if tree["model"]["kind"] == kind]
    assert decode(RunConfig, tree, "docs").model == config
