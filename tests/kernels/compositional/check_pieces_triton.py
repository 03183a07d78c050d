"""Checks of compositional look-ups in Triton, run as a script under its interpreter."""

import mmap
import os

import torch
from interpreted import ALSO_INSIDE, mend_interpreter
from look_ups import (
    CASES,
    PACKED,
    assert_step_equals_torchs,
    batch_of,
    packed_table,
    table_of,
    torchs_slots,
)

import outsize
from outsize.hashing import draw_hashes
from outsize.kernels.compositional import composed_triton, pieces, slots
from outsize.kernels.compositional.composed_triton import Tuning
from outsize.kernels.compositional.pointers import HashedPointers
from outsize.kernels.compositional.slots import SlotMap
from outsize.kernels.compositional.slots_triton import find_slots_kernel
from outsize.kernels.compositional.sums_triton import add_totals_kernel
from outsize.tables.id_slots import empty_map, slot_map

SMALL = Tuning(numbers=256, block=16, most_programs=3)
IN_ANY_ORDER = SMALL._replace(enough_programs=4, most_blocks=0, most_copies=2)


def use(tuning):
    composed_triton.tuning_for = lambda places: tuning


def check_every_method():
    for method, options, dim in CASES:
        table = table_of(method, options, dim, 20_000)
        assert_step_equals_torchs(table, *batch_of(30, dim))


def check_sums_in(tuning):
    """Sums of programs, or of all programs at once, where many ids share few rows."""
    use(tuning)
    for method, options, dim in (
        ("cce", {}, 16),
        ("ce-hybrid", {"columns": 3}, 7),
        ("robe", {}, 6),
    ):
        table = table_of(method, options, dim, 200)
        for num_ids in (0, 1, 70):
            assert_step_equals_torchs(table, *batch_of(num_ids, dim))


def check_packed_pointers():
    for num_buckets, num_slots in PACKED:
        for is_clustered in (False, True):
            table = packed_table(num_buckets, num_slots, is_clustered=is_clustered)
            assert_step_equals_torchs(table, *batch_of(40, 12))
    table = packed_table(40, 17, is_clustered=True, helper=False)
    assert_step_equals_torchs(table, *batch_of(40, 12))


def check_pointers_of_every_width():
    for num_codes in (100, 300, 70_000):
        spec = outsize.TableSpec("ad", 700, 4)
        table = outsize.build_table("cce", spec, max_params=2 * num_codes, columns=2)
        ids, gradient = batch_of(40, 4)
        assert_step_equals_torchs(table, ids, gradient)
        assert torch.equal(table.decode(table.encode(ids)), table(ids))


def check_slots():
    """Low parts of 8 bits and of 16, of blocks that are empty, full and in between."""
    for num_rows, num_own in ((1, 1), (257, 200), (70_000, 90), (70_000, 30_000), (1_000_000, 9)):
        own = torch.randperm(num_rows)[:num_own].sort().values
        ids = torch.cat([own[:40], torch.randint(0, num_rows, (60,))])
        for found in (slot_map(own, num_rows), empty_map(num_own, num_rows)):
            map_of_ids = SlotMap(*found, draw_hashes(2, 0), 7, 2 * num_rows)
            assert torch.equal(slots.found_slots(ids, map_of_ids), torchs_slots(ids, map_of_ids))


def check_places_near_the_largest():
    """Sums and slots whose places are close to 2³¹, in memory of which a few pages are touched."""
    memory = mmap.mmap(-1, (1 << 31) + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def bytes_from(place):
        return torch.frombuffer(memory, dtype=torch.uint8, count=64, offset=place)

    begin = bytes_from(0).data_ptr()
    ALSO_INSIDE.append((begin, begin + len(memory)))
    size = (1 << 31) - 48  # then 16 totals that belong to the beginning, and what is not a total
    bytes_from(0).fill_(1)
    bytes_from(size)[:16], bytes_from(size)[16:] = 2, 100
    out = torch.empty(64)
    add_totals_kernel[(1,)](bytes_from(0), out, 1, size + 16, size, LINES=1, BLOCK=64)
    assert out.tolist() == [3.0] * 16 + [1.0] * 48

    middle, first = 1 << 30, (1 << 30) + 5
    bytes_from(middle + first).copy_(torch.arange(64) * 3)
    ids = torch.tensor([0, 3, 4, 60, 189])
    starts = torch.tensor([first, first + 64], dtype=torch.int32)
    found = torch.empty(5, dtype=torch.int64)
    find_slots_kernel[(1,)](
        ids, starts, bytes_from(middle), draw_hashes(1, 0), found, 5, first + 64, 1, 0,
        LOW_BITS=8, BLOCK=8,
    )  # fmt: skip
    assert (found - first).tolist() == [0, 1, 64, 20, 63]
    ALSO_INSIDE.clear()


def check_too_large():
    """What comes so close to 2³¹ that the places of a block go beyond it is left to torch."""
    source = pieces.Source(HashedPointers(draw_hashes(1, 0), 7), 4, (0,))
    for size, num in (((1 << 31) - 100, 1), (28, (1 << 31) - 100)):
        weight, ids = torch.empty(size, device="meta"), torch.empty(num, device="meta")
        assert pieces.composed(weight, ids.long(), (4,), [source]) is None


def check_gradients_of_gradients():
    table = outsize.build_table("robe", outsize.TableSpec("ad", 50, 4), max_params=20)
    cubes = table(torch.arange(50)).pow(3).sum()
    (first,) = torch.autograd.grad(cubes, table.weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), table.weight)
    (counts,) = torch.autograd.grad(table(torch.arange(50)).sum(), table.weight)
    torch.testing.assert_close(second, 6 * table.weight.detach() * counts, rtol=1e-4, atol=1e-4)


def is_asked_for_triton(*tensors):
    return os.environ.get("OUTSIZE_KERNELS") != "torch"


if __name__ == "__main__":
    mend_interpreter()
    torch.manual_seed(0)
    for module in (pieces, slots):
        vars(module)["uses_triton"] = is_asked_for_triton
    check_sums_in(SMALL)
    check_sums_in(IN_ANY_ORDER)
    use(SMALL)
    check_every_method()
    check_packed_pointers()
    check_pointers_of_every_width()
    check_slots()
    check_places_near_the_largest()
    check_too_large()
    check_gradients_of_gradients()
    print("all checks passed")
