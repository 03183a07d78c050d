import pytest
import torch
import torch.nn.functional as F

import outsize
from outsize.errors import ConfigError, DataError, IdError
from outsize.models import TwoTower, TwoTowerConfig

SIZES = {"user": 11, "age": 5, "film": 9, "genres": 4}
QUERIES, ITEMS = ("user", "age"), ("film", "genres")
ROWS = ["local", "cached", "full", "cce"]


def make_embeddings(rows="local", dim=4, sizes=SIZES):
    specs = [outsize.TableSpec(name, size, dim) for name, size in sizes.items()]
    features = [
        outsize.FeatureSpec(name, pooling="mean", padding_id=-1 if name == "genres" else None)
        for name in sizes
    ]
    if rows == "local":
        return outsize.EmbeddingCollection(features, outsize.LocalStore(specs))
    if rows == "cached":
        store = outsize.CachedStore(outsize.ShardedStore(specs), 8, 0, 0)
        return outsize.EmbeddingCollection(features, store)
    return outsize.EmbeddingCollection(
        features, outsize.build_tables(rows, specs, max_params=None if rows == "full" else 16)
    )


def make(rows="local", **options):
    return TwoTower(make_embeddings(rows), QUERIES, ITEMS, **{"dim": 6, "hidden": (5,), **options})


def queries(*rows):
    rows = torch.tensor(rows)
    return {"user": rows, "age": rows % 5}


def items(*rows):
    rows = torch.tensor(rows)
    return {"film": rows, "genres": torch.stack((rows % 4, torch.full_like(rows, -1)), dim=1)}


@pytest.mark.parametrize("rows", ROWS)
def test_each_side_is_encoded_from_its_own_features(rows):
    model = make(rows)
    asked, wanted = model(queries(1, 2, 3), items(4, 4, 0, 8))
    assert (asked.shape, wanted.shape) == ((3, 6), (4, 6))
    torch.testing.assert_close(wanted[0], wanted[1])
    torch.testing.assert_close(asked.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(model.encode_queries(queries(2)), asked[1:2])


@pytest.mark.parametrize("rows", ROWS)
def test_a_gradient_reaches_every_parameter_and_both_sides_rows(rows):
    model = make(rows)
    asked, wanted = model(queries(*range(11)), items(*range(9)))
    (asked @ wanted.T).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    if model.embeddings.store is not None:
        update = model.embeddings.store.pending.merge()
        assert update.ids.tolist() == list(range(sum(SIZES.values())))


@pytest.mark.parametrize("rows", ["local", "cached"])
def test_a_row_read_twice_in_a_step_gets_one_update_of_the_sum(rows):
    """As where a query is an item seen before: both sides read one table."""
    twice, once = (make_embeddings(rows, sizes={"film": 9}) for _ in range(2))
    for embeddings, splits in ((twice, [[1, 2], [2, 3], [2]]), (once, [[1, 2, 2, 3, 2]])):
        optimizer = outsize.RowAdagrad(embeddings.store, learning_rate=0.5)
        for _ in range(2):
            read = [
                embeddings({"film": torch.tensor(ids)}, only=["film"])["film"] for ids in splits
            ]
            torch.cat(read).pow(3).sum().backward()
            optimizer.step()
        embeddings.store.flush()
    ids = torch.arange(9)
    expected = once.store.read(ids, "film")
    torch.testing.assert_close(twice.store.read(ids, "film"), expected)
    clocks = [
        (e.store if rows == "local" else e.store.inner.owned).clocks.tolist() for e in (twice, once)
    ]
    assert clocks[0] == clocks[1]
    assert max(clocks[0]) == 2  # a tick a step


def test_without_layers_it_is_matrix_factorisation():
    embeddings = make_embeddings(sizes={"user": 11, "film": 9})
    model = TwoTower(embeddings, ["user"], ["film"], dim=4, normalize=False)
    assert list(model.parameters()) == []
    wanted = model.eval().encode_items({"film": torch.arange(9)})
    assert torch.equal(wanted, embeddings.store.read(torch.arange(9), "film"))


def test_without_hidden_layers_a_tower_of_another_width_is_linear():
    model = make(hidden=(), normalize=False)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {"query_tower.0.weight": (6, 8), "item_tower.0.weight": (6, 8)}


def test_one_mlp_may_serve_both_sides():
    model = make(shared=True)
    assert all(name.startswith("query_tower") for name, _ in model.named_parameters())
    asked, wanted = model(queries(1), items(1))
    (asked * wanted).sum().backward()
    with pytest.raises(ConfigError, match="queries have 8 numbers and items 4"):
        TwoTower(make_embeddings(), QUERIES, ["film"], shared=True)


def test_the_state_dict_brings_back_what_was_trained():
    one, other = make("full", seed=1), make("full", seed=2)
    given = queries(3), items(5)
    assert not torch.equal(one(*given)[1], other(*given)[1])
    other.load_state_dict(one.state_dict())
    for found, expected in zip(other(*given), one(*given), strict=True):
        assert torch.equal(found, expected)


def test_the_seed_decides_the_layers():
    first, same, other = (make(seed=seed).encode_items(items(1)) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_bad_id_is_named_with_its_feature():
    with pytest.raises(IdError, match="'user': id 11 is outside 0 … 10"):
        make().encode_queries({"user": torch.tensor([11]), "age": torch.tensor([0])})


def test_only_the_asked_features_are_needed():
    model = make()
    with pytest.raises(DataError, match="no feature 'age'"):
        model.encode_queries({"user": torch.tensor([1])})
    with pytest.raises(ConfigError, match="no feature 'film' for the item tower"):
        TwoTower(make_embeddings(sizes={"user": 3}), ["user"], ["film"])
    with pytest.raises(ConfigError, match="no feature 'zip'; there are user, age, film, genres"):
        model.embeddings(queries(1), only=["zip"])


def test_a_configuration_chooses_features_and_refuses_others():
    config = TwoTowerConfig(item_features=("genres",))
    assert config.features_of(("film", "genres"), "item") == ("genres",)
    assert config.features_of(("user",), "query") == ("user",)
    with pytest.raises(ConfigError, match="item_features names 'genres', but the data has film"):
        config.features_of(("film",), "item")
    with pytest.raises(ConfigError, match="hidden must hold widths >= 1"):
        TwoTowerConfig(hidden=(0,))


@pytest.mark.parametrize("normalize", [True, False])
def test_training_brings_pairs_together(normalize):
    model = make("full", normalize=normalize)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        asked, wanted = model(queries(*range(9)), items(*range(9)))
        loss = F.cross_entropy(5 * asked @ wanted.T, torch.arange(9))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.0


def test_numbers_are_read_as_they_are():
    model = TwoTower(
        make_embeddings(), (*QUERIES, "wage"), ("price",), numbers=("wage", "price"), dim=6,
        normalize=False,
    )  # fmt: skip
    wage = torch.tensor([-1.0, 0.0, 2.0])
    asked = {**queries(1, 1, 1), "wage": wage}
    encoded = model.encode_queries(asked)
    torch.testing.assert_close(encoded[2] - encoded[1], -2 * (encoded[0] - encoded[1]))
    assert not torch.equal(encoded[1], encoded[2])
    prices = torch.tensor([1.0, 3.0])
    wanted = model.encode_items({"price": prices})
    torch.testing.assert_close(wanted[1], 3 * wanted[0])
    encoded.sum().backward()
    assert model.query_tower[0].weight.grad[:, -1].abs().sum() > 0


def test_a_number_must_be_one_for_each_row():
    model = TwoTower(make_embeddings(), QUERIES, ("price",), numbers=("price",), dim=6)
    with pytest.raises(
        DataError, match=r"'price' is a number for each row, \(n,\), but got \(2, 1"
    ):
        model.encode_items({"price": torch.ones(2, 1)})


def test_towers_that_share_layers_count_numbers():
    with pytest.raises(ConfigError, match="queries have 9 numbers and items 8"):
        TwoTower(make_embeddings(), (*QUERIES, "wage"), ITEMS, numbers=("wage",), shared=True)
