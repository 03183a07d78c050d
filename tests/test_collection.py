import numpy as np
import pytest
import torch
from torch import nn

import outsize
from outsize.errors import ConfigError, DataError, IdError

SPECS = [
    outsize.TableSpec("user", num_rows=40, dim=4),
    outsize.TableSpec("item", num_rows=30, dim=4),
    outsize.TableSpec("country", num_rows=5, dim=2),
]
FEATURES = [
    outsize.FeatureSpec("user"),
    outsize.FeatureSpec("clicked", table="item", pooling="mean", padding_id=-1),
    outsize.FeatureSpec("shown", table="item", pooling="max"),
    outsize.FeatureSpec("bought", table="item"),
    outsize.FeatureSpec("country"),
]
INPUTS = {
    "user": torch.tensor([3, 3, 39]),
    "clicked": torch.tensor([[0, 5, -1], [-1, -1, -1], [5, 5, 7]]),
    "shown": (torch.tensor([1, 2, 29, 0]), torch.tensor([0, 0, 3])),
    "bought": outsize.Bag(
        torch.tensor([4, 5, 6]), torch.tensor([0, 1, 1]), torch.tensor([0.5, 2.0, -1.0])
    ),
    "country": torch.tensor([0, 4, 0]),
}


def over_store(features=FEATURES, specs=SPECS):
    return outsize.EmbeddingCollection(features, outsize.LocalStore(specs))


def over_tables(features=FEATURES, specs=SPECS):
    tables = {spec.name: outsize.build_table("full", spec) for spec in specs}
    return outsize.EmbeddingCollection(features, tables)


def expected_of(weights):
    """The same batch through torch's own layers."""

    def bag(table, mode):
        return nn.EmbeddingBag.from_pretrained(weights[table], mode=mode, freeze=False)

    clicked = bag("item", "mean")
    shown, bought = bag("item", "max"), bag("item", "sum")
    return {
        "user": weights["user"][INPUTS["user"]],
        "clicked": torch.stack(
            [
                clicked(torch.tensor([[0, 5]]))[0],
                torch.zeros(4),
                clicked(torch.tensor([[5, 5, 7]]))[0],
            ]
        ),
        "shown": shown(*INPUTS["shown"]),
        "bought": bought(
            INPUTS["bought"].values,
            INPUTS["bought"].offsets,
            per_sample_weights=INPUTS["bought"].weights,
        ),
        "country": weights["country"][INPUTS["country"]],
    }


@pytest.mark.parametrize("make", [over_store, over_tables])
def test_every_kind_of_feature_equals_torchs_layers(make):
    collection = make()
    weights = {
        spec.name: outsize.build_table("full", spec).weight.detach().clone() for spec in SPECS
    }
    vectors = collection(INPUTS)
    for name, expected in expected_of(weights).items():
        torch.testing.assert_close(vectors[name], expected)


def test_tables_and_store_train_alike_under_sgd():
    stored, tabled = over_store(), over_tables()
    rows = outsize.RowSGD(stored.store, learning_rate=0.1)
    dense = torch.optim.SGD(tabled.parameters(), lr=0.1)
    for _ in range(3):
        for collection, optimizer in ((stored, rows), (tabled, dense)):
            optimizer.zero_grad()
            sum(v.square().sum() for v in collection(INPUTS).values()).backward()
            optimizer.step()
    for spec in SPECS:
        everything = torch.arange(spec.num_rows)
        torch.testing.assert_close(
            stored.store.read(everything, spec.name), tabled.tables[spec.name](everything)
        )


def test_features_that_share_a_table_update_a_shared_row_once():
    features = [outsize.FeatureSpec("a", table="item"), outsize.FeatureSpec("b", table="item")]
    collection = over_store(features, SPECS[1:2])
    optimizer = outsize.RowSGD(collection.store, learning_rate=1.0)
    before = collection.store.read(torch.tensor([2]))
    vectors = collection({"a": torch.tensor([2]), "b": torch.tensor([2])})
    (vectors["a"].sum() + 2 * vectors["b"].sum()).backward()
    optimizer.step()
    torch.testing.assert_close(collection.store.read(torch.tensor([2])), before - 3.0)
    assert collection.store.exchange(None, torch.tensor([2])).clocks.tolist() == [1]


def test_one_id_each_takes_the_fast_path_with_the_same_result():
    features = [outsize.FeatureSpec("user"), outsize.FeatureSpec("item")]
    inputs = {"user": torch.tensor([1, 2, 1]), "item": torch.tensor([0, 29, 0])}
    fast = over_store(features, SPECS[:2])
    mixed = over_store(features, SPECS)  # a second width rules the fast path out
    assert fast.stacked(inputs).shape == (3, 2, 4)
    for name in inputs:
        torch.testing.assert_close(fast(inputs)[name], mixed(inputs)[name])
    torch.testing.assert_close(fast.stacked(inputs), mixed.stacked(inputs))
    torch.testing.assert_close(fast.stacked(inputs)[:, 1], fast(inputs)["item"])


@pytest.mark.parametrize("make", [over_store, over_tables])
def test_an_id_out_of_range_names_where_it_occurred(make):
    features = [outsize.FeatureSpec("user"), outsize.FeatureSpec("item")]
    collection = make(features, SPECS[:2])
    with pytest.raises(IdError, match=r"'item'.*30 is outside 0 … 29"):
        collection({"user": torch.tensor([1]), "item": torch.tensor([30])})
    with pytest.raises(IdError, match="-2"):
        collection({"user": torch.tensor([-2]), "item": torch.tensor([3])})


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("make", [over_store, over_tables])
def test_ids_of_another_type_are_refused(make):
    with pytest.raises(DataError, match="int64"):
        make([outsize.FeatureSpec("user")], SPECS[:1])({"user": torch.tensor([1.0])})


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("make", [over_store, over_tables])
@pytest.mark.parametrize("ids", [[1], np.ones(1, np.int64)])
def test_what_is_no_tensor_is_refused(make, ids):
    way_out = "feature 'user' has a .*: give a tensor of ids"
    with pytest.raises(DataError, match=way_out):
        make([outsize.FeatureSpec("user")], SPECS[:1])({"user": ids})


def test_a_batch_that_does_not_fit_is_refused():
    collection = over_store([outsize.FeatureSpec("user"), outsize.FeatureSpec("item")], SPECS[:2])
    with pytest.raises(DataError, match="no feature 'item'"):
        collection({"user": torch.tensor([1])})
    with pytest.raises(DataError, match=r"'item' has 2 examples.*'user' has 1"):
        collection({"user": torch.tensor([1]), "item": torch.tensor([1, 2])})


def test_a_collection_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="points to table 'nowhere'"):
        over_store([outsize.FeatureSpec("a", table="nowhere")])
    with pytest.raises(ConfigError, match="two features"):
        over_store([outsize.FeatureSpec("user"), outsize.FeatureSpec("user")])
    with pytest.raises(ConfigError, match="at least one"):
        over_store([])
    with pytest.raises(ConfigError, match="differ in width"):
        over_store().stacked(INPUTS)


def test_memory_by_table_adds_up():
    collection = over_store()
    outsize.RowAdam(collection.store)
    by_table = collection.memory_by_table()
    assert by_table["country"].num_parameters == 10
    # rows of 2 floats, a clock, two moments of 2 floats and a step count
    assert by_table["country"].total_bytes == 5 * 4 * (2 + 1 + 4 + 1)
    total = collection.memory_use()
    assert total.total_bytes == sum(use.total_bytes for use in by_table.values())
    tabled = over_tables().memory_use()
    assert tabled.num_parameters == total.num_parameters


def test_evaluation_reads_do_not_join_the_graph():
    collection = over_store().eval()
    assert not any(v.requires_grad for v in collection(INPUTS).values())
    collection.train()
    with torch.no_grad():
        assert not any(v.requires_grad for v in collection(INPUTS).values())
    assert all(v.requires_grad for v in collection(INPUTS).values())


def test_an_empty_batch_gives_empty_vectors():
    collection = over_store([outsize.FeatureSpec("user"), outsize.FeatureSpec("item")], SPECS[:2])
    empty = torch.empty(0, dtype=torch.int64)
    assert collection({"user": empty, "item": empty})["item"].shape == (0, 4)


@pytest.mark.gpu
def test_bad_ids_on_cuda_are_reported_at_the_end_of_the_step():
    collection = over_store([outsize.FeatureSpec("user"), outsize.FeatureSpec("item")], SPECS[:2])
    collection = collection.to("cuda")
    ids = {"user": torch.tensor([1], device="cuda"), "item": torch.tensor([30], device="cuda")}
    collection(ids)
    with pytest.raises(IdError, match="30"):
        collection.raise_if_bad_ids()
    collection.raise_if_bad_ids()  # reported once


def test_the_cap_rule_keeps_small_tables_full():
    specs = [outsize.TableSpec("small", 500, 16), outsize.TableSpec("large", 501, 16)]
    tables = outsize.build_tables("cce", specs, max_params=8_000)
    assert isinstance(tables["small"], outsize.FullTable)
    assert type(tables["large"]) is outsize.TABLES["cce"]
    in_bytes = outsize.build_tables("hash", specs, max_bytes=500 * 16 * 4)
    assert isinstance(in_bytes["small"], outsize.FullTable)
    assert type(in_bytes["large"]) is outsize.TABLES["hash"]


def test_every_table_that_can_is_reclustered():
    specs = [outsize.TableSpec("small", 50, 8), outsize.TableSpec("large", 800, 8)]
    tables = outsize.build_tables("cce", specs, max_params=400)
    embeddings = outsize.EmbeddingCollection(
        [outsize.FeatureSpec("small"), outsize.FeatureSpec("large")], tables
    )
    optimizer = torch.optim.Adam(embeddings.parameters())
    counts = {"small": torch.ones(50).long(), "large": torch.ones(800).long()}
    reports = embeddings.recluster(optimizer, counts)
    assert list(reports) == ["large"]
    assert int(tables["large"].num_clusterings) == 1


def test_a_store_has_nothing_to_recluster():
    store = outsize.LocalStore([outsize.TableSpec("ad", 10, 2)])
    assert outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], store).recluster() == {}


def test_codes_can_stand_in_a_batch_for_ids():
    specs = [outsize.TableSpec("small", 50, 8), outsize.TableSpec("large", 800, 8)]
    features = [
        outsize.FeatureSpec("small"),
        outsize.FeatureSpec("shown", table="large"),
        outsize.FeatureSpec("history", table="large", pooling="mean", padding_id=-1),
        outsize.FeatureSpec("weighed", table="large"),
    ]
    tables = outsize.build_tables("cce", specs, max_params=400)
    embeddings = outsize.EmbeddingCollection(features, tables)
    embeddings.recluster()
    inputs = {
        "small": torch.tensor([3, 49]),
        "shown": torch.tensor([799, 0]),
        "history": torch.tensor([[5, -1, 7], [-1, -1, -1]]),
        "weighed": outsize.Bag(torch.tensor([[1, 2], [3, 4]]), None, torch.rand(2, 2)),
    }
    encoded = embeddings.encode(inputs)
    assert isinstance(encoded["small"], outsize.Bag)
    assert isinstance(encoded["shown"], outsize.Codes)
    assert encoded["history"].values.shape[0] == 2
    expected, found = embeddings(inputs), embeddings(encoded)
    for name in inputs:
        torch.testing.assert_close(found[name], expected[name])
    assert torch.equal(embeddings.stacked(encoded), torch.stack(list(found.values()), dim=1))
    again = embeddings.encode(encoded)
    assert all(again[name] is encoded[name] for name in inputs)
    found["history"].sum().backward()
    assert tables["large"].weight.grad is not None


def test_codes_are_refused_where_there_are_no_pointers():
    codes = outsize.Codes(torch.zeros(2, 8, dtype=torch.uint8))
    spec = outsize.TableSpec("ad", 100, 8)
    store = outsize.LocalStore([spec])
    with pytest.raises(DataError, match="'ad' has codes, but its rows live in a store"):
        outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], store)({"ad": codes})
    hashed = outsize.build_tables("hash", [spec], max_params=80)
    with pytest.raises(ConfigError, match="'ad': its method keeps no pointers"):
        outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], hashed)({"ad": codes})
    with pytest.raises(ConfigError, match="'ad': its method keeps no pointers"):
        hashed["ad"].encode(torch.tensor([1]))


@pytest.mark.usefixtures("unchecked_shapes")
def test_codes_of_the_wrong_shape_are_refused():
    deep = torch.zeros(2, 3, 8, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"codes must be \(N, pointers\)"):
        outsize.Codes(deep, offsets=torch.tensor([0, 3]))
    table = outsize.build_table("cce", outsize.TableSpec("ad", 100, 8), max_params=80)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], {"ad": table})
    with pytest.raises(DataError, match=r"'ad': codes must be \(N, pointers\).*flatten bags"):
        embeddings({"ad": outsize.Codes(deep, version=table.codes_version)})


def test_codes_of_before_a_reclustering_are_refused_by_a_collection():
    table = outsize.build_table("cce", outsize.TableSpec("ad", 300, 8), max_params=80)
    features = [outsize.FeatureSpec("ad"), outsize.FeatureSpec("ads", table="ad")]
    embeddings = outsize.EmbeddingCollection(features, {"ad": table})
    inputs = {"ad": torch.tensor([1, 2]), "ads": torch.tensor([[1, 2], [3, 4]])}
    batch = embeddings.encode(inputs)
    embeddings(batch)
    embeddings.recluster()
    with pytest.raises(DataError, match="'ad': these codes were made before its pointers changed"):
        embeddings(batch)
    again = embeddings(embeddings.encode(inputs))
    assert torch.equal(again["ad"], table(inputs["ad"]))


@pytest.mark.parametrize("make", [over_store, over_tables])
def test_features_of_different_sizes_are_read_in_one_call(make):
    embeddings = make()
    inputs = {
        "user": torch.tensor([3, 3, 39, 0]),
        "clicked": torch.tensor([[0, 5, -1], [5, 5, 7]]),
        "shown": (torch.tensor([1, 2, 29, 0]), torch.tensor([0, 0, 3])),
        "bought": torch.zeros(0, dtype=torch.int64),
        "country": torch.tensor([4]),
    }
    found = embeddings.ragged(inputs)
    for name, given in inputs.items():
        (alone,) = embeddings({name: given}, [name]).values()
        torch.testing.assert_close(found[name], alone)
    assert embeddings.ragged({"user": inputs["user"]}, ["user"])["user"].shape == (4, 4)
    with pytest.raises(DataError, match="'clicked' has 2 examples"):
        embeddings(inputs)


def test_rows_of_features_of_different_sizes_get_the_gradients_of_each():
    rows = {}
    for ragged in (True, False):
        embeddings = over_store(
            [FEATURES[0], outsize.FeatureSpec("clicked", "item", "mean")], SPECS[:2]
        )
        optimizer = outsize.RowSGD(embeddings.store, lr=1.0)
        users = torch.tensor([3, 3, 39, 0])
        clicked = (torch.tensor([1, 2, 1]), torch.tensor([0, 2]))
        if ragged:
            found = embeddings.ragged({"user": users, "clicked": clicked})
        else:
            found = embeddings({"user": users}, ["user"])
            found |= embeddings({"clicked": clicked}, ["clicked"])
        (found["user"].sum() + 2 * found["clicked"].sum()).backward()
        optimizer.step()
        rows[ragged] = torch.cat([embeddings.store.peek(torch.arange(70))[0]])
    torch.testing.assert_close(rows[True], rows[False])


@pytest.mark.parametrize("make", [over_store, over_tables])
def test_a_batch_of_no_features_has_no_vectors(make):
    embeddings = make()
    assert embeddings(INPUTS, only=[]) == {}
    assert embeddings.ragged(INPUTS, only=[]) == {}


def test_no_features_are_prefetched_as_nothing():
    store = outsize.OverlappedStore(outsize.ShardedStore(SPECS[:1]))
    embeddings = outsize.EmbeddingCollection(FEATURES[:1], store)
    embeddings.prefetch(INPUTS, only=[])
    assert embeddings(INPUTS, only=[]) == {}
    embeddings.prefetch(INPUTS)
    assert embeddings(INPUTS)["user"].shape == (3, 4)
