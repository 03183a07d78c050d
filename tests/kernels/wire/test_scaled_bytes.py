import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.kernels.wire.scaled_bytes import SCALE_BYTES, decode_rows, encode_rows, round_rows

pytest.importorskip("numba")


@given(
    seed=st.integers(0, 2**16),
    num=st.sampled_from([0, 1, 7]),
    dim=st.sampled_from([1, 2, 3, 16, 33]),
    dtype=st.sampled_from([torch.int8, torch.int16]),
    magnitude=st.sampled_from([0.0, 1e-44, 1e-38, 1e-3, 1.0, 3e37]),
)
@settings(max_examples=40, deadline=None)
def test_compiled_bytes_are_those_of_torch(seed, num, dim, dtype, magnitude):
    draw = torch.Generator().manual_seed(seed)
    vectors = (torch.rand(num, dim, generator=draw) * 2 - 1) * magnitude
    vectors[:, ::2] = vectors[:, ::2].mul(8).round().div(8)  # halves, whose rounding has ties
    found = []
    for engine in ("numba", "torch"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OUTSIZE_KERNELS", engine)
            content = encode_rows(vectors, dtype)
            decoded = decode_rows(content, dim, dtype)
            found.append((content, decoded))
            assert torch.equal(round_rows(vectors, dtype), decoded)
    assert found[0][0].shape == (num, SCALE_BYTES + dtype.itemsize * dim)
    for compiled, plain in zip(*found, strict=True):
        assert torch.equal(compiled, plain)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_vector_that_is_not_finite_has_such_a_scale(monkeypatch, bad):
    monkeypatch.setenv("OUTSIZE_KERNELS", "numba")
    content = encode_rows(torch.tensor([[1.0, bad, 2.0], [1.0, -bad, 2.0]]), torch.int8)
    scales = content[:, :SCALE_BYTES].reshape(-1).view(torch.float32)
    assert not scales.isfinite().any()
