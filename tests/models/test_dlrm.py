import pytest
import torch

import outsize
from outsize.bench.plain_dlrm import PlainDLRM
from outsize.errors import ConfigError
from outsize.models import DLRM

SIZES = {f"c{i}": 10 + i for i in range(26)}


def make_embeddings(sizes=SIZES, dim=16):
    specs = [outsize.TableSpec(name, size, dim) for name, size in sizes.items()]
    features = [outsize.FeatureSpec(name) for name in sizes]
    return outsize.EmbeddingCollection(features, outsize.LocalStore(specs))


def make_batch(sizes=SIZES, batch=5, num_dense=13):
    generator = torch.Generator().manual_seed(0)
    ids = {n: torch.randint(0, s, (batch,), generator=generator) for n, s in sizes.items()}
    return torch.randn(batch, num_dense, generator=generator), ids


def test_the_default_is_the_benchmark_model():
    model = DLRM(13, make_embeddings())
    widths = [(layer.in_features, layer.out_features) for layer in model.modules()
              if isinstance(layer, torch.nn.Linear)]  # fmt: skip
    assert widths == [
        (13, 512), (512, 256), (256, 64), (64, 16),
        (27 * 26 // 2 + 16, 512), (512, 256), (256, 1),
    ]  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == sum((a + 1) * b for a, b in widths)


def test_interactions_are_all_pairwise_dot_products():
    sizes = {"a": 4, "b": 4}
    model = DLRM(3, make_embeddings(sizes, dim=2), bottom=(), top=())
    dense, ids = make_batch(sizes, batch=1, num_dense=3)
    hidden = model.bottom(dense)[0]
    a, b = (model.embeddings(ids)[name][0] for name in "ab")
    features = torch.cat((hidden, torch.stack((a @ hidden, b @ hidden, b @ a))))
    torch.testing.assert_close(model(dense, ids), model.top(features.unsqueeze(0))[:, 0])


def test_it_equals_the_model_written_in_plain_pytorch():
    model = DLRM(13, make_embeddings())
    plain = PlainDLRM(13, SIZES, dim=16)
    weights = {name: value for name, value in model.state_dict().items() if "store" not in name}
    plain.over.load_state_dict(weights)
    for name, table in plain.tables.items():
        table.weight.data = model.embeddings.store.read(torch.arange(SIZES[name]), name)
    dense, ids = make_batch()
    torch.testing.assert_close(model(dense, ids), plain(dense, ids))


def test_models_without_dense_features_work():
    model = DLRM(0, make_embeddings({"a": 4, "b": 4}))
    _, ids = make_batch({"a": 4, "b": 4}, num_dense=0)
    assert model(torch.empty(5, 0), ids).shape == (5,)


def test_a_model_with_nothing_to_interact_is_refused():
    with pytest.raises(ConfigError, match="interact"):
        DLRM(0, make_embeddings({"a": 4}))


def test_the_seed_decides_the_weights():
    one, same, other = (DLRM(13, make_embeddings(), seed=seed) for seed in (1, 1, 2))
    dense, ids = make_batch()
    assert torch.equal(one(dense, ids), same(dense, ids))
    assert not torch.equal(one(dense, ids), other(dense, ids))
