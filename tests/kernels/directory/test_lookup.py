import sys

import pytest
import torch
from draw_checks import held_keys, no_waiting, on_cuda

from outsize.kernels.directory.lookup import NO_KEY, keys_and_ages, rows_holding

gpu = pytest.mark.gpu
FINDS = [
    pytest.param(rows_holding, id="cpu"),
    pytest.param(on_cuda(rows_holding), id="cuda", marks=gpu),
]
READS = [
    pytest.param(keys_and_ages, id="cpu"),
    pytest.param(on_cuda(keys_and_ages), id="cuda", marks=gpu),
]


@pytest.mark.parametrize("num_recent", [0, 1, 30])
@pytest.mark.parametrize("num_rows", [1, 2, 33, 120])
@pytest.mark.parametrize("find", FINDS)
def test_keys_are_found_where_rows_hold_them(find, num_rows, num_recent):
    held, lists = held_keys(num_rows, min(num_rows, num_recent))
    keys = torch.arange(-1, 300).view(7, 43)
    row_of = {key: row for row, key in enumerate(held.tolist()) if key != NO_KEY}
    expected = [[row_of.get(key, -1) for key in line] for line in keys.tolist()]
    assert find(keys, held, lists).tolist() == expected


@pytest.mark.parametrize("find", FINDS)
def test_nothing_is_found_for_no_keys_and_in_empty_rows(find):
    held, lists = held_keys(40)
    assert find(torch.empty(3, 0).long(), held, lists).shape == (3, 0)
    empty = torch.full((5,), NO_KEY)
    _, lists = held_keys(5, 2)
    assert find(torch.arange(-1, 160), empty, lists).eq(-1).all()


@pytest.mark.parametrize("read", READS)
def test_rows_tell_their_keys_and_ages(read):
    held, encoded_at = torch.tensor([7, NO_KEY, 5]), torch.tensor([1, 0, 4])
    keys, ages = read(torch.tensor([[2, 0], [-1, 2]]), held, encoded_at, 10)
    assert keys.tolist() == [[5, 7], [NO_KEY, 5]]
    assert ages.tolist() == [[6, 9], [0, 6]]


@gpu
def test_a_gpu_is_never_waited_for():
    held, lists = held_keys(90)
    held, lists = held.cuda(), tuple(type(one)(*(each.cuda() for each in one)) for one in lists)
    keys = torch.arange(90).cuda()
    for _ in range(2):  # the first time kernels are compiled
        with no_waiting():
            rows = rows_holding(keys, held, lists)
            keys_and_ages(rows, held, held, 5)


@gpu
def test_torch_looks_up_on_the_device_where_kernels_are_not_to_be_used(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    monkeypatch.setitem(sys.modules, "outsize.kernels.directory.lookup_triton", None)
    held, lists = held_keys(40, 5)
    keys = torch.arange(-1, 160)
    assert torch.equal(on_cuda(rows_holding)(keys, held, lists), rows_holding(keys, held, lists))
    rows, stamps = torch.arange(-1, 40), torch.arange(40)
    for there, here in zip(
        on_cuda(keys_and_ages)(rows, held, stamps, 50),
        keys_and_ages(rows, held, stamps, 50),
        strict=True,
    ):
        assert torch.equal(there, here)
