"""Batches in one buffer."""

from dataclasses import replace

import pytest
import torch

from outsize.contracts import Bag
from outsize.data import ClickBatch, SyntheticConfig
from outsize.data.on_device import batches_on
from outsize.data.packed_clicks import ClickLayout, packed

CPU = torch.device("cpu")


def make_batches(num=3, size=5):
    data = SyntheticConfig(
        num_train=num * size - 2, num_validation=1, num_test=1, num_dense=3, vocabulary=(7, 11)
    ).build()
    return list(data.batches("train", size))


def assert_same(one, other):
    assert torch.equal(one.dense, other.dense.to(one.dense.device))
    assert torch.equal(one.labels, other.labels.to(one.labels.device))
    assert one.num_global == other.num_global
    assert list(one.ids) == list(other.ids)
    for name, ids in one.ids.items():
        assert torch.equal(ids, other.ids[name].to(ids.device))


@pytest.mark.parametrize("has_probability", [False, True])
def test_a_packed_batch_is_the_batch(has_probability):
    for batch in make_batches():
        batch = batch if has_probability else replace(batch, probability=None)
        moved = packed(batch, CPU)
        assert_same(moved, batch)
        assert (moved.probability is None) == (not has_probability)
        if has_probability:
            assert torch.equal(moved.probability, batch.probability)
        views = [moved.dense, moved.labels, *moved.ids.values()]
        start, stop = moved.buffer.data_ptr(), moved.buffer.data_ptr() + moved.buffer.numel()
        assert all(start <= view.data_ptr() < stop for view in views)


def test_batches_of_one_size_have_one_layout_and_the_last_has_another():
    layouts = [ClickLayout.of(batch) for batch in make_batches()]
    assert layouts[0] == layouts[1] != layouts[2]
    assert layouts[2].num_examples == 3


def test_a_large_batch_is_split_into_packed_ones():
    whole = make_batches(num=1, size=14)[0].slice(0, 12)
    layout = ClickLayout.of(whole.slice(0, 4))
    parts = list(layout.split(whole))
    assert len(parts) == 3
    for number, part in enumerate(parts):
        assert_same(part, whole.slice(number * 4, number * 4 + 4))
        assert torch.equal(part.probability, whole.slice(number * 4, number * 4 + 4).probability)
        assert part.buffer.numel() == layout.num_bytes
        assert packed(part, CPU) is part


def test_a_layout_knows_the_examples_of_all_ranks():
    batch = replace(make_batches()[0], num_global=20)
    assert packed(batch, CPU).num_global == 20


def test_a_batch_without_numbers_or_without_ids_is_packed_too():
    ids = {"a": torch.tensor([4, 2])}
    for batch in (
        ClickBatch(torch.empty(2, 0), ids, torch.tensor([0.0, 1.0])),
        ClickBatch(torch.rand(2, 3), {}, torch.tensor([0.0, 1.0])),
    ):
        assert_same(packed(batch, CPU), batch)


@pytest.mark.parametrize(
    "ids",
    [
        Bag(torch.tensor([1, 2, 3]), torch.tensor([0, 1])),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([1, 2], dtype=torch.int32),
    ],
)
def test_bags_and_other_types_are_not_packed(ids):
    batch = ClickBatch(torch.rand(2, 1), {"a": ids}, torch.rand(2))
    assert ClickLayout.of(batch) is None
    assert packed(batch, CPU).buffer is None


def test_what_moves_a_packed_batch_forgets_its_buffer():
    moved = packed(make_batches()[0], CPU)
    assert moved.buffer is not None
    assert moved.to("cpu").buffer is None
    assert moved.take(torch.tensor([0])).buffer is None
    assert moved.slice(0, 2).buffer is None


@pytest.mark.gpu
@pytest.mark.parametrize("is_made_there", [False, True])
def test_batches_on_a_gpu_are_those_of_the_source(is_made_there):
    device = torch.device("cuda", 0)
    batches = make_batches(num=40)
    source = (batch.to(device) if is_made_there else batch for batch in batches)
    found = 0
    for moved, batch in zip(batches_on(source, device), batches, strict=True):
        torch.cuda._sleep(100_000)  # a step that is still reading when the next batch arrives
        copy = packed(moved, device)
        assert_same(copy, batch)
        assert moved.buffer.is_cuda
        found += 1
    assert found == 40


@pytest.mark.gpu
def test_bags_reach_a_gpu_too():
    device = torch.device("cuda", 0)
    bag = Bag(torch.tensor([1, 2, 3]), torch.tensor([0, 1]))
    batch = ClickBatch(torch.rand(2, 1), {"a": bag}, torch.rand(2))
    (moved,) = batches_on(iter([batch]), device)
    assert torch.equal(moved.ids["a"].values.cpu(), bag.values)
    assert torch.equal(moved.dense.cpu(), batch.dense)
