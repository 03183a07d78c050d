"""`outsize.compress_` on torch models that know nothing of Outsize."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import outsize
from outsize.errors import BudgetError, ConfigError
from outsize.hashing import derive_seed

NUM_WORDS, NUM_TAGS = 400, 300


class Classifier(nn.Module):
    """A transformer over words beside a bag of tags, as a user would write it."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, 16, padding_idx=0)
        self.places = nn.Embedding(6, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.side = nn.ModuleDict({"tags": nn.EmbeddingBag(NUM_TAGS, 8, mode="sum")})
        self.output = nn.Linear(24, 2)

    def forward(self, words, tags, offsets, weights):
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        hidden = self.encoder(hidden, src_key_padding_mask=words == 0).mean(dim=1)
        return self.output(torch.cat([hidden, self.side["tags"](tags, offsets, weights)], dim=1))


def batch(seed, size=64):
    """Words and tags; the label is whether the first word is even."""
    generator = torch.Generator().manual_seed(derive_seed(0, "batch", seed))
    words = torch.randint(1, NUM_WORDS, (size, 6), generator=generator)
    labels = words[:, 0] % 2
    words[:, 4:] = 0
    tags = torch.randint(NUM_TAGS, (size * 2,), generator=generator)
    weights = torch.rand(size * 2, generator=generator)
    return (words, tags, torch.arange(size) * 2, weights), labels


def fit(model, steps, seed, learning_rate=0.01):
    """Train as any torch user does; returns the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    losses = []
    for step in range(steps):
        inputs, labels = batch(seed + step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(*inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loss_of(model):
    inputs, labels = batch(10_000, 512)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(*inputs), labels))


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    model = Classifier()
    fit(model, 80, 0)
    assert loss_of(model) < 0.5
    return model


@pytest.fixture
def model(trained):
    return copy.deepcopy(trained)


def test_a_trained_model_keeps_its_loss_and_trains_on(model, trained):
    report = outsize.compress_(model, factor=3, min_rows=100)
    assert {one.names for one in report.modules} == {("words",), ("side.tags",)}
    assert type(model.words) is outsize.nn.Embedding
    assert type(model.side["tags"]) is outsize.nn.EmbeddingBag
    assert type(model.places) is nn.Embedding
    assert loss_of(model) < loss_of(trained) + 0.05
    assert all(one.relative_error < 0.1 for one in report.modules)
    before = loss_of(model)
    fit(model, 15, 500, 0.003)
    assert loss_of(model) < before + 0.01
    assert not model.words(torch.tensor(0)).any()


def test_a_clustered_model_can_be_reclustered_while_it_trains_on(model):
    report = outsize.compress_(model, method="cce", max_bytes=14_000, min_rows=100)
    assert report.bytes_after <= 14_000
    assert all(one.relative_error < 0.5 for one in report.modules)
    fit(model, 10, 500)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for table in model.modules():
        if isinstance(table, outsize.EmbeddingTable):
            assert table.recluster(optimizer).num_clusters > 0
    assert fit(model, 60, 600)[-1] < 0.6


@pytest.mark.parametrize("method", ["pq", *(name for name in outsize.TABLES if name != "full")])
def test_every_method_stays_within_the_bytes_and_reports_its_error(model, method):
    before = {"words": model.words.weight, "side.tags": model.side["tags"].weight}
    report = outsize.compress_(model, method=method, max_bytes=12_000, min_rows=100)
    assert report.bytes_before == (NUM_WORDS * 16 + NUM_TAGS * 8) * 4
    assert report.bytes_after == sum(
        module.memory_use().total_bytes for module in (model.words, model.side["tags"])
    )
    assert 8_000 < report.bytes_after <= 12_000
    for one in report.modules:
        rows = before[one.names[0]].detach()
        first = int(one.names == ("words",))  # without its padding
        table = model.get_submodule(one.names[0]).table
        found = table(torch.arange(len(rows))).detach() - rows
        assert one.mse == pytest.approx(float(found[first:].square().sum(dim=1).mean()), rel=1e-4)
        assert one.relative_error <= 1.01
        assert (one.num_rows, one.dim) == tuple(rows.shape)
        assert one.method == method
        assert f"{one.names[0]}: " in str(report)
    assert str(report).endswith(f"total: {report.bytes_before:,} -> {report.bytes_after:,} bytes")


def test_a_copy_and_a_state_dict_of_a_compressed_model_are_whole(model, trained):
    outsize.compress_(model, factor=4, min_rows=100, columns=2)
    other = copy.deepcopy(trained)
    outsize.compress_(other, factor=4, min_rows=100, seed=9, columns=2)
    other.load_state_dict(model.state_dict())
    inputs, _ = batch(3)
    model.eval(), other.eval()
    assert torch.equal(other(*inputs), model(*inputs))
    assert torch.equal(copy.deepcopy(model)(*inputs), model(*inputs))


def test_mode_dtype_training_and_gradients_are_kept():
    model = nn.ModuleDict(
        {
            "frozen": nn.Embedding(200, 8).requires_grad_(False),
            "short": nn.Embedding(200, 8, dtype=torch.bfloat16).eval(),
            "bag": nn.EmbeddingBag(200, 8, mode="max", include_last_offset=True, padding_idx=2),
        }
    )
    exact = copy.deepcopy(model)
    outsize.compress_(model, factor=1.5, min_rows=0, iterations=10)
    ids = torch.arange(200)
    assert not any(p.requires_grad for p in model["frozen"].parameters())
    assert all(p.requires_grad for p in model["bag"].parameters())
    assert model["short"](ids).dtype == torch.bfloat16
    assert [m.training for m in model.values()] == [True, False, True]
    assert not model["short"].table.training
    bags = torch.tensor([0, 3, 200])
    torch.testing.assert_close(
        model["bag"](ids, bags), exact["bag"](ids, bags), atol=0.05, rtol=0.05
    )


def test_a_padding_row_that_is_not_zero_keeps_its_vector():
    model = nn.Sequential(nn.Embedding(300, 8, padding_idx=5))
    with torch.no_grad():
        model[0].weight[5] = torch.arange(8.0) * 1000
    report = outsize.compress_(model, factor=4, min_rows=0)
    assert torch.equal(model(torch.tensor([5]))[0], torch.arange(8.0) * 1000)
    assert report.modules[0].variance < 100
    assert report.bytes_after <= 300 * 8


def test_a_module_in_several_places_is_replaced_once():
    shared = nn.Embedding(300, 8)
    model = nn.ModuleDict({"left": nn.Sequential(shared), "right": nn.Sequential(shared)})
    report = outsize.compress_(model, factor=2, only="right.0")
    assert model["left"][0] is model["right"][0]
    assert report.modules[0].names == ("left.0", "right.0")
    assert report.bytes_before == 300 * 8 * 4


def test_embeddings_that_share_a_weight_share_a_table():
    model = nn.ModuleDict({"a": nn.Embedding(300, 8), "b": nn.Embedding(300, 8, padding_idx=1)})
    model["bag"] = nn.EmbeddingBag(300, 8, mode="sum")
    model["b"].weight = model["bag"].weight = model["a"].weight
    rows = model["a"].weight.detach().clone()
    report = outsize.compress_(model, factor=2, min_rows=0)
    (one,) = report.modules
    assert one.names == ("a", "b", "bag")
    assert model["a"].table is model["b"].table is model["bag"].table
    assert (
        one.bytes_after
        == outsize.MemoryUse.of(
            {"parameters": model.parameters(), "index": model.buffers()}
        ).total_bytes
    )
    assert one.bytes_after <= 300 * 8 * 2
    ids = torch.tensor([[1, 2]])
    assert (model["a"](ids)[0] - rows[1:3]).square().mean() < 0.01
    assert torch.equal(model["b"](ids)[0, 0], rows[1])


class Language(nn.Module):
    """A model whose output layer is tied to its embedding."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(300, 8)
        self.types = nn.Embedding(300, 4)
        self.output = nn.Linear(8, 300, bias=False)
        self.output.weight = self.emb.weight


def test_a_tied_output_layer_is_skipped_with_a_warning_and_refused_by_name():
    model = Language()
    with pytest.warns(UserWarning, match=r"skips 'emb': output\.weight uses the same weight"):
        report = outsize.compress_(model, factor=2, min_rows=0)
    assert type(model.emb) is nn.Embedding
    assert model.output.weight is model.emb.weight
    assert [one.names for one in report.modules] == [("types",)]
    assert "output.weight uses the same weight" in report.skipped["emb"]
    with pytest.raises(ConfigError, match=r"cannot replace 'emb': output\.weight uses"):
        outsize.compress_(Language(), factor=2, only=["emb"])
    copied = Language()
    copied.output.weight = nn.Parameter(copied.emb.weight.detach())
    with pytest.raises(ConfigError, match=r"output\.weight uses the same weight"):
        outsize.compress_(copied, factor=2, only="emb")


class Positions(nn.Embedding):
    """An embedding with a forward pass of its own."""

    def forward(self, input):
        return super().forward(input + 2)


def hooked():
    module = nn.Embedding(300, 8)
    module.register_forward_hook(lambda module, inputs, output: None)
    return module


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Embedding(300, 8, max_norm=1.0), "max_norm=1 rescales"),
        (nn.EmbeddingBag(300, 8, scale_grad_by_freq=True), "scale_grad_by_freq scales"),
        (nn.Embedding(300, 8, sparse=True), "set sparse=False"),
        (Positions(300, 8), "it is a Positions, not an nn.Embedding itself"),
        (hooked(), "it has hooks"),
        (nn.utils.parametrizations.orthogonal(nn.Embedding(300, 8)), "ParametrizedEmbedding"),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_what_cannot_be_replaced_is_skipped_or_refused_if_it_is_named(module, reason):
    model = nn.ModuleDict({"odd": module, "plain": nn.Embedding(300, 8)})
    with pytest.raises(ConfigError, match=reason):
        outsize.compress_(model, factor=2, only=["odd", "plain"])
    assert model["odd"] is module
    assert type(model["plain"]) is nn.Embedding
    with pytest.warns(UserWarning, match=reason):
        outsize.compress_(model, factor=2, min_rows=0, iterations=1)
    assert model["odd"] is module
    assert type(model["plain"]) is outsize.nn.Embedding


def test_which_embeddings_are_replaced_can_be_chosen(model):
    def is_bag(name, module):
        return isinstance(module, nn.EmbeddingBag)

    outsize.compress_(model, factor=4, only=is_bag, min_rows=100, iterations=1)
    assert type(model.words) is nn.Embedding
    assert type(model.side["tags"]) is outsize.nn.EmbeddingBag
    with pytest.raises(ConfigError, match="no embedding 'word'; it has places, words"):
        outsize.compress_(model, factor=4, only="word")
    outsize.compress_(model, factor=4, only=["words"], min_rows=1_000, iterations=1)
    assert type(model.words) is outsize.nn.Embedding


def test_nothing_changes_if_one_of_many_cannot_be_made():
    model = nn.ModuleDict({"large": nn.Embedding(500, 8), "small": nn.Embedding(4, 8)})
    modules = dict(model.named_modules())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(BudgetError, match="'small': the smallest pq table"):
        outsize.compress_(model, factor=4, min_rows=0, iterations=1)
    with torch.no_grad():
        model["small"].weight[0] = state["small.weight"][0] = torch.nan
    with pytest.raises(outsize.OutsizeError, match="'small': its trained rows hold NaN"):
        outsize.compress_(model, factor=2, min_rows=0, iterations=1)
    assert dict(model.named_modules()) == modules
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0, equal_nan=True)


def test_embeddings_within_the_bytes_are_left_as_they_are(model):
    report = outsize.compress_(model, max_bytes=10**9, min_rows=100)
    assert report.modules == ()
    assert set(report.skipped) == {"words", "side.tags"}
    assert type(model.words) is nn.Embedding


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "give max_bytes or factor"),
        ({"factor": 2, "max_bytes": 10}, "give max_bytes or factor"),
        ({"factor": 1}, "factor must be > 1, but got 1"),
        ({"factor": float("nan")}, "factor must be > 1, but got nan"),
        ({"factor": 2, "method": "ccd"}, "no table method 'ccd'"),
        ({"factor": 2, "min_rows": 5_000}, "no embedding of 5,000 rows or more"),
        ({"factor": 2, "width": 3}, "a pq table has no option 'width'"),
        ({"max_bytes": 20}, "may take 14 bytes, which its padding row needs alone"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model, settings, message):
    with pytest.raises(ConfigError, match=message):
        outsize.compress_(model, **{"min_rows": 100, **settings})
    assert type(model.words) is nn.Embedding


def test_an_embedding_itself_is_refused():
    with pytest.raises(ConfigError, match=r"use outsize\.nn\.Embedding\.from_pretrained"):
        outsize.compress_(nn.Embedding(300, 8), factor=2)


def test_a_model_that_is_wrapped_for_several_ranks_is_refused():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(300, 8)))
        with pytest.raises(ConfigError, match="compress before wrapping"):
            outsize.compress_(wrapped, factor=2, min_rows=0)
        del wrapped
    finally:
        dist.destroy_process_group()


def test_the_same_seed_compresses_alike(trained):
    found = []
    for seed in (1, 1, 2):
        model = copy.deepcopy(trained)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outsize.compress_(model, factor=4, min_rows=100, seed=seed, columns=2)
        found.append(model.words(torch.arange(NUM_WORDS)).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_code_that_reads_the_weight_is_told_why_there_is_none(model):
    outsize.compress_(model, factor=4, min_rows=100, iterations=1)
    with pytest.raises(AttributeError, match="method 'pq' has no weight with a row per id"):
        nn.functional.linear(torch.zeros(1, 16), model.words.weight)
