"""Bytes of vectors by Triton beside those by torch."""

import torch

from outsize.kernels.rows.scaled import scale_rows, unscale_rows
from outsize.kernels.wire.scaled_bytes import SCALE_BYTES, decode_rows, encode_rows
from outsize.kernels.wire.scaled_bytes_triton import (
    decode_by_triton,
    encode_by_triton,
    round_by_triton,
)


def check_wire(device):
    """Both types at odd widths, with a line of zeros, one of halves, and one with a NaN."""
    for dtype in (torch.int8, torch.int16):
        for num, dim in ((40, 5), (7, 128), (1, 1)):
            draw = torch.Generator().manual_seed(dim)
            vectors = torch.randn(num, dim, generator=draw) * 10.0 ** torch.randint(
                -9, 9, (num, 1), generator=draw
            )
            vectors[0] = 0.0
            vectors[-1] = torch.arange(dim) - dim // 2 + 0.5
            content = encode_rows(vectors, dtype)
            there = torch.empty(num, SCALE_BYTES + dtype.itemsize * dim, dtype=torch.uint8)
            there = there.to(device)
            encode_by_triton(vectors.to(device), dtype, there)
            assert torch.equal(content, there.cpu())
            decoded = decode_rows(content, dim, dtype)
            assert torch.equal(decoded, decode_by_triton(there, dim, dtype).cpu())
            assert torch.equal(decoded, unscale_rows(*scale_rows(vectors, dtype)))
            assert torch.equal(decoded, round_by_triton(vectors.to(device), dtype).cpu())
            vectors[-1, 0] = torch.nan  # then all of the line is NaN, as by torch
            encode_by_triton(vectors.to(device), dtype, there)
            for found in (
                decode_rows(encode_rows(vectors, dtype), dim, dtype),
                decode_by_triton(there, dim, dtype).cpu(),
                round_by_triton(vectors.to(device), dtype).cpu(),
            ):
                assert found[-1].isnan().all()
                assert torch.equal(found[:-1], decoded[:-1])
