"""A run that memory cannot hold is refused before anything of it is allocated."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from outsize.data import SyntheticConfig
from outsize.errors import NotEnoughMemoryError
from outsize.models import CLICK_MODELS
from outsize.optimizers import ROW_OPTIMIZERS
from outsize.training.build import build_model
from outsize.training.config import OptimizerConfig, RunConfig, load_config
from outsize.training.memory_needs import (
    EmbeddingShapes,
    click_model_needs,
    embedding_needs,
    refusing_what_memory_cannot_hold,
    require_memory,
    specs_of,
)
from outsize.training.run import train
from outsize.training.store_config import RowOptimizerConfig, StoreConfig

SMALL = SyntheticConfig(
    num_train=64,
    num_validation=8,
    num_test=8,
    num_dense=3,
    num_categorical=4,
    largest_vocabulary=50,
)
CLICK = """
[data]
num_train = 64
num_validation = 8
num_test = 8
num_dense = 3
num_categorical = 4
largest_vocabulary = 50
"""
RETRIEVAL = """
[data]
kind = "synthetic-interactions"
num_queries = 12
num_items = 30
items_per_query = 6
[model]
kind = "two-tower"
[embeddings]
dim = 4
"""
TOO_LARGE = [
    (CLICK, "embeddings.dim=2147483648", "embeddings.dim = 2,147,483,648 for"),
    (CLICK, "embeddings.dim=4611686018427387904", "embeddings.dim = 4,611,686,018,427,387,904"),
    (CLICK, "data.largest_vocabulary=2147483648", "for 2,151,075,725 ids in 4 tables"),
    (CLICK, "data.num_clusters=1099511627776", "data.num_clusters = 1,099,511,627,776 of 4"),
    (CLICK, "data.num_dense=2147483648", "data.num_dense = 2,147,483,648"),
    (CLICK, "model.top=[2147483648]", "[model] with embeddings.dim = 16"),
    (CLICK, "model.bottom=[4611686018427387904, 9]", "[model] with embeddings.dim = 16"),
    (RETRIEVAL, "data.num_queries=10000000000000", "data.num_queries = 10,000,000,000,000"),
    (RETRIEVAL, "data.num_items=10000000000000", "data.num_items = 10,000,000,000,000"),
    (RETRIEVAL, "data.latent_dim=1099511627776", "data.latent_dim = 1,099,511,627,776"),
    (RETRIEVAL, "data.num_groups=1099511627776", "data.num_groups = 1,099,511,627,776"),
    (RETRIEVAL, "model.dim=1099511627776", "dim = 1,099,511,627,776"),
    (RETRIEVAL, "model.hidden=[2147483648, 2147483648]", "[model] with dim = 64 and"),
    (RETRIEVAL, "negatives.num_negatives=1099511627776", "[negatives] with"),
    (RETRIEVAL, "retrieval.recall_at=[1099511627776]", "cut-offs up to 1,099,511,627,776"),
]


@pytest.mark.parametrize(("text", "setting", "expected"), TOO_LARGE)
def test_a_size_beyond_memory_is_named_with_its_bytes(tmp_path, text, setting, expected):
    path = tmp_path / "run.toml"
    path.write_text(text)

    with pytest.raises(NotEnoughMemoryError) as caught:
        train(load_config(path, [setting]), quiet=True)

    message = str(caught.value)
    assert expected in message
    assert "B of memory" in message
    assert "B are available: lower it" in message
    assert "\n" not in message


@pytest.mark.parametrize("key", ["batch_size", "eval_batch_size"])
def test_a_batch_beyond_memory_is_refused_where_there_are_examples_to_fill_it(key):
    data = replace(SMALL, num_train=10**12, num_validation=10**9)
    config = RunConfig(data=data, embeddings=StoreConfig(dim=2**16))

    with pytest.raises(NotEnoughMemoryError, match=rf"train\.{key} = 1,099,511,627,776 needs"):
        train(replace(config, train=replace(config.train, **{key: 2**40, "steps": 1})), quiet=True)
    train(
        RunConfig(data=SMALL, train=replace(config.train, **{key: 2**40, "steps": 1})), quiet=True
    )


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "full-adagrad", "adam"])
def test_what_is_expected_of_rows_is_what_they_take(kind):
    wanted = StoreConfig(dim=8, optimizer=RowOptimizerConfig(kind))
    config = RunConfig(data=SMALL, embeddings=wanted)
    data = SMALL.build()
    specs = specs_of(config, data.features, data.vocabularies)
    store = wanted.build_store(specs, seed=0)
    ROW_OPTIMIZERS[kind](store)

    (expected,) = embedding_needs(config, specs).values()

    assert expected == store.memory_use().total_bytes


@pytest.mark.parametrize("kind", CLICK_MODELS)
@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 2), ("adagrad", 3), ("adamw", 4)])
def test_what_is_expected_of_dense_weights_is_what_they_take(kind, optimizer, copies):
    data = replace(SMALL, num_dense=0, vocabulary=(5, 7)) if kind == "gmf" else SMALL
    config = RunConfig(
        data=data, model=CLICK_MODELS[kind](), optimizer=OptimizerConfig(optimizer, 0.1)
    )
    built = data.build()

    model = build_model(config, built)
    specs = specs_of(config, built.features, built.vocabularies)
    shapes = EmbeddingShapes(built.features, specs)
    expected, _ = click_model_needs(config, built.num_dense, shapes, (9, 9)).values()

    num_weights = sum(weight.numel() for weight in model.parameters())
    assert expected == num_weights * 4 * copies


def test_the_first_part_that_does_not_fit_is_named():
    require_memory({"a": 1000, "b": 2000})
    with pytest.raises(NotEnoughMemoryError, match=r"^b needs 6\.0 EB of memory \(and all else"):
        require_memory({"a": 5, "b": 6 * 10**18, "c": 7 * 10**18})


def test_a_part_is_named_rather_than_what_follows_from_it():
    with pytest.raises(NotEnoughMemoryError, match=r"^a needs 5\.0 EB"):
        require_memory({"a": 5 * 10**18, "b": 6 * 10**18})


@pytest.mark.parametrize(
    "fail",
    [
        lambda: torch.empty(1 << 50),
        lambda: torch.empty(1 << 62, 1 << 62),
        lambda: bytearray(1 << 60),
    ],
    ids=["allocation", "overflow", "python"],
)
def test_an_allocation_that_fails_all_the_same_is_one_line(fail):
    with (
        pytest.raises(NotEnoughMemoryError, match="needs more memory than there is") as caught,
        refusing_what_memory_cannot_hold(),
    ):
        fail()
    assert "\n" not in str(caught.value)


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="shapes"), refusing_what_memory_cannot_hold():
        nn.Linear(2, 3)(torch.ones(1, 5))


def test_an_address_space_that_is_limited_limits_what_is_available():
    code = """
import resource
from outsize.training.available_memory import available_bytes
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 10**9, used + 10**9))
print(available_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0.5e9 < int(done.stdout) <= 1e9
