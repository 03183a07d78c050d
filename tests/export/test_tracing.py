"""Exported models as programs of torch.export."""

import io

import pytest
import torch
from raw_logs import TEST_ROWS, as_columns

import outsize
from outsize.errors import ConfigError, ExportError
from outsize.export import trace, write_exported
from outsize.models import CLICK_MODELS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # sizes of a trace are not integers
PACKED = {"all-packed": 1000, "some-packed": 40}  # slots of packed pointers
FURTHER = ["quantized", "int8", *PACKED]
ROWS = {name: 40 + 7 * place for place, name in enumerate([*outsize.TABLES, *FURTHER])}


def make_table(method):
    spec = outsize.TableSpec(method, ROWS[method], 8)
    if method == "quantized":
        return outsize.quantize(outsize.FullTable(spec, seed=2), columns=2, codes=8)
    if method == "int8":
        return outsize.Int8Table.from_table(outsize.FullTable(spec, seed=2))
    if method == "full":
        return outsize.FullTable(spec, seed=2)
    if method in PACKED:
        table = outsize.tables.PackedCCETable(spec, num_buckets=20, num_slots=PACKED[method])
        table.recluster(counts=torch.arange(spec.num_rows))
        return table
    return outsize.build_tables(method, [spec], max_params=170, seed=2)[method]


def make_model(methods, kind="dcn", num_dense=2, **of_features):
    tables = {method: make_table(method) for method in methods}
    features = [outsize.FeatureSpec(name, **of_features.get(name, {})) for name in tables]
    config = CLICK_MODELS[kind]()
    embeddings = outsize.EmbeddingCollection(features, tables)
    return config, config.build(num_dense, embeddings, seed=1).eval()


def reloaded(config, model, folder):
    write_exported(folder, model, config)
    return outsize.load_exported(folder)


def draw_batch(model, size, bags=()):
    draw = torch.Generator().manual_seed(size)
    ids = {}
    for feature in model.embeddings.features:
        num_rows = model.embeddings.spec_of(feature).num_rows
        if feature.name in bags:
            lengths = torch.randint(0, 4, (size,), generator=draw)
            values = torch.randint(num_rows, (int(lengths.sum()),), generator=draw)
            ids[feature.name] = (values, lengths.cumsum(0) - lengths)
        else:
            ids[feature.name] = torch.randint(num_rows, (size,), generator=draw)
    return torch.randn(size, model.num_dense, generator=draw), ids


def saved_and_loaded(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def assert_same(program, model, bags=(), sizes=(1, 7, 300)):
    run = program.module()
    for size in sizes:
        batch = draw_batch(model, size, bags)
        with torch.no_grad():
            assert torch.equal(run(*batch), model(*batch))


def test_tables_of_every_method_are_traced_with_no_difference(tmp_path):
    model = reloaded(*make_model(ROWS), tmp_path / "model")
    assert len(model.embeddings.tables) == len(outsize.TABLES) + 4
    program = trace(model)
    assert_same(saved_and_loaded(program), model)
    used = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in used if name.startswith("outsize")]


@pytest.mark.parametrize("kind", CLICK_MODELS)
def test_every_model_is_traced_with_no_difference(kind):
    _, model = make_model(["full", "hash"], kind, num_dense=0 if kind == "gmf" else 2)
    assert_same(trace(model), model, sizes=(1, 7))


def test_bags_are_traced_with_no_difference():
    features = [
        outsize.FeatureSpec(f"{pooling}_{padding_id}", "cce", pooling, padding_id)
        for pooling in ("sum", "mean", "max")
        for padding_id in (None, 0)
    ]
    embeddings = outsize.EmbeddingCollection(features, {"cce": make_table("cce")})
    model = CLICK_MODELS["dcn"]().build(0, embeddings, seed=1).eval()
    bags = [feature.name for feature in features]
    program = trace(model, bags)
    assert_same(program, model, bags)
    nothing = (torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    batch = torch.empty(3, 0), dict.fromkeys(bags, nothing)
    with torch.no_grad():
        assert torch.equal(program.module()(*batch), model(*batch))


def test_a_model_of_raw_rows_knows_its_bags(trained):
    model = outsize.load_exported(trained("compressed")[2])
    program = trace(model)
    encoder = model.predictor.encoder
    seen = []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    expected = model.predict(as_columns(TEST_ROWS[:50]), logits=True)
    (dense, ids), *_ = seen
    bags = {name: (bag.values, bag.offsets) for name, bag in ids.items() if name == "tags"}
    found = program.module()(dense, {**ids, **bags})
    assert encoder.recipe.multi_valued == ("tags",)
    assert torch.equal(found.detach(), torch.from_numpy(expected))


def test_ids_out_of_range_are_refused_by_the_program():
    _, model = make_model(["hash", "full"])
    run = trace(model).module()
    dense, ids = draw_batch(model, 4)
    for bad in (-1, ROWS["hash"]):
        with pytest.raises(RuntimeError, match="table 'hash': an id is outside 0 … "):
            run(dense, {**ids, "hash": torch.full((4,), bad)})


def test_the_module_stays_in_its_mode():
    _, model = make_model(["full"])
    trace(model.train())
    assert model.training


def test_what_cannot_be_traced_is_refused_in_words():
    spec = outsize.TableSpec("user", 9, 4)
    store = outsize.EmbeddingCollection([outsize.FeatureSpec("user")], outsize.LocalStore([spec]))
    with pytest.raises(ConfigError, match="in a store, which cannot be traced"):
        trace(CLICK_MODELS["dcn"]().build(0, store, seed=0))
    with pytest.raises(ConfigError, match="no feature 'ful'; there are full"):
        trace(make_model(["full"])[1], bags=["ful"])
    with pytest.raises(ConfigError, match="a Linear is not a click model"):
        trace(torch.nn.Linear(2, 1))


class Branching(outsize.FullTable):
    """A table of one's own that decides by values."""

    def lookup(self, ids):
        return super().lookup(ids) if int(ids.sum()) % 2 else super().lookup(ids) * 2


def test_a_table_that_torch_cannot_trace_is_named():
    table = Branching(outsize.TableSpec("user", 9, 4))
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("user")], {"user": table})
    with pytest.raises(ExportError, match=r"torch\.export cannot trace this \w+: ") as caught:
        trace(CLICK_MODELS["dcn"]().build(0, embeddings, seed=0))
    assert "\n" not in str(caught.value)
