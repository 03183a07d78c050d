import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from outsize.kernels.distinct.distinct import Distinct, distinct
from outsize.kernels.gather import gather as module
from outsize.kernels.gather.gather import Bags, gather, is_finite, read_lines, sum_lines

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def compiled_for_any_size(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    monkeypatch.setattr(module, "BLOCK", 64)


def make(seed, num_ids, num_rows, dim):
    """Ids with hot rows, and their rows."""
    draw = torch.Generator().manual_seed(seed)
    ids = (torch.rand(num_ids, generator=draw) ** 3 * num_rows).long()
    found = distinct(ids, num_rows)
    return draw, found, torch.randn(found.ids.shape[0], dim, generator=draw)


def both(rows, found, bags, weights):
    """Lines and gradients, compiled and by torch in float64."""
    ours, exact = rows.clone().requires_grad_(), rows.double().requires_grad_()
    lines = gather(ours, found, bags)
    expected = gather(exact, Distinct(found.ids, found.inverse), bags)
    (lines * weights[: len(lines)]).sum().backward()
    (expected * weights[: len(lines)].double()).sum().backward()
    return lines, ours.grad, expected, exact.grad


@given(
    seed=st.integers(0, 1000),
    num_ids=st.sampled_from([0, 1, 2, 300]),
    num_rows=st.sampled_from([1, 3, 1000]),
    dim=st.sampled_from([1, 3, 16, 17]),
    kind=st.sampled_from(["ids", "bags", "scaled bags"]),
)
def test_lines_and_gradients_equal_torchs(seed, num_ids, num_rows, dim, kind):
    draw, found, rows = make(seed, num_ids, num_rows, dim)
    bags = None
    if kind != "ids":
        cuts = torch.randint(0, num_ids + 1, (9,), generator=draw).sort().values
        edges = torch.cat((torch.tensor([0]), cuts, torch.tensor([num_ids])))
        scales = torch.randn(num_ids, generator=draw) if kind == "scaled bags" else None
        bags = Bags(edges, scales)
    weights = torch.randn(max(num_ids, 10), dim, generator=draw)
    lines, gradient, expected, exact = both(rows, found, bags, weights)
    # float32 sums of up to 300 numbers
    torch.testing.assert_close(lines.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-4, atol=1e-4)


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_NUMBERS", 1)
    draw, found, rows = make(0, 50_000, 40, 5)
    weights = torch.randn(50_000, 5, generator=draw)
    gradients = []
    for parts in (1, 2, 3, 8):
        monkeypatch.setattr(module, "num_parts", lambda *_, parts=parts: parts)
        leaf = rows.clone().requires_grad_()
        (gather(leaf, found) * weights).sum().backward()
        gradients.append(leaf.grad)
    for other in gradients[1:]:
        assert torch.equal(gradients[0], other)


def test_gradients_of_gradients():
    _, found, rows = make(0, 60, 9, 3)
    rows = rows[: found.ids.shape[0]].requires_grad_()
    cube = gather(rows, found).pow(3).sum()
    (first,) = torch.autograd.grad(cube, rows, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), rows)
    counts = found.inverse.bincount().unsqueeze(1)
    torch.testing.assert_close(second, 6 * rows * counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_any_type_are_copied(dtype):
    rows = torch.randn(50, 7).to(dtype)
    places = torch.tensor([3, 3, 49, 0])
    assert torch.equal(read_lines(rows, places), rows[places])
    assert read_lines(rows, places[:0]).shape == (0, 7)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_seen(value):
    numbers = torch.full((3, 5), 3e38)  # their sum overflows, but each is finite
    assert is_finite(numbers)
    assert is_finite(numbers[:0])
    numbers[2, 4] = value
    assert not is_finite(numbers)


def test_torch_reads_and_sums_bags_on_their_device():
    """As it must on CUDA where Triton is not used; fake tensors have no numbers, but devices."""
    with FakeTensorMode():
        rows = torch.zeros(5, 4, device="cuda")
        found = Distinct(*(torch.zeros(n, dtype=torch.int64, device="cuda") for n in (5, 7)))
        bags = Bags(torch.zeros(4, dtype=torch.int64, device="cuda"), torch.zeros(7, device="cuda"))
        lines = gather(rows, found, bags)
        assert lines.shape == read_lines(rows, found.inverse, bags).shape == (3, 4)
        assert sum_lines(lines, found, bags).device == lines.device == rows.device
