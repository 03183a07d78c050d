"""Ids are checked wherever they are looked up, compiled or not."""

import copy
import pickle

import pytest
import torch

import outsize
from outsize.contracts import IdGuard
from outsize.errors import DataError, IdError


@pytest.fixture(autouse=True)
def as_users_compile(unchecked_shapes):
    torch.compiler.reset()


def test_a_compiled_collection_over_a_store_refuses_ids_out_of_range():
    specs = [outsize.TableSpec("ad", 10, 4), outsize.TableSpec("user", 20, 4)]
    features = [outsize.FeatureSpec("ad"), outsize.FeatureSpec("user")]
    embeddings = outsize.EmbeddingCollection(features, outsize.LocalStore(specs)).eval()
    compiled = torch.compile(embeddings, backend="eager")
    good = {"ad": torch.tensor([9, 0]), "user": torch.tensor([19, 0])}
    assert torch.equal(compiled(good)["user"], embeddings(good)["user"])
    with pytest.raises(IdError, match=r"feature 'user': id 20 is outside 0 … 19"):
        compiled({**good, "user": torch.tensor([0, 20])})


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_checks_its_own_ids(again):
    table = again(outsize.build_table("hash", outsize.TableSpec("ad", 50, 4), max_params=40))
    compiled = torch.compile(table, backend="eager", fullgraph=True)
    assert compiled(torch.tensor([49])).shape == (1, 4)
    for look_up in (table, compiled):
        with pytest.raises(IdError, match="'ad': id 50"):
            look_up(torch.tensor([50]))


def test_tables_compiled_one_after_the_other_keep_their_own_bounds():
    for num_rows in (5, 50, 500):
        spec = outsize.TableSpec(f"rows-{num_rows}", num_rows, 4)
        compiled = torch.compile(outsize.build_table("full", spec), backend="aot_eager")
        assert compiled(torch.tensor([num_rows - 1, 0])).shape == (2, 4)
        with pytest.raises(IdError, match=f"'rows-{num_rows}': id {num_rows}"):
            compiled(torch.tensor([num_rows, 0]))


def test_ids_of_another_type_are_refused_by_compiled_tables_too():
    table = outsize.build_table("hash", outsize.TableSpec("ad", 50, 4), max_params=40)
    compiled = torch.compile(table, backend="eager")
    for look_up in (table, compiled):
        with pytest.raises(DataError, match=r"ids must be int64, but got torch\.int32"):
            look_up(torch.tensor([1], dtype=torch.int32))


def test_a_guard_made_on_the_meta_device_checks_ids_of_any_other():
    with torch.device("meta"):
        guard = IdGuard({"a": 3, "b": 5})
    assert guard(torch.tensor([[2, 4]])).tolist() == [[2, 4]]
    assert guard(torch.tensor([[9, 9]], device="meta")).is_meta
    with pytest.raises(IdError, match="b: id 5"):
        guard(torch.tensor([[2, 5]]))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # of torch's first graph
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("method", ["hash", "cce"])
def test_compiled_tables_flag_ids_out_of_range_on_cuda(mode, method):
    table = outsize.build_table(method, outsize.TableSpec("ad", 50, 4), max_params=40).cuda()
    compiled = torch.compile(table, mode=mode, fullgraph=True)
    good = torch.tensor([49, 0], device="cuda")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(good).clone(), table(good))
        table.raise_if_bad_ids()
        compiled(torch.tensor([50, 0], device="cuda"))
        compiled(good)
    with pytest.raises(IdError, match="'ad': id 50"):
        table.raise_if_bad_ids()
    table.raise_if_bad_ids()
