"""The Triton index and sketch beside their references."""

import torch

from outsize.kernels.directory.sketch_triton import (
    count_uses_by_triton,
    estimate_by_triton,
    lift_by_triton,
)
from outsize.kernels.directory.slots import ProbedSlots, SortedSlots
from outsize.stores.eviction.count_min_sketch import CountMinSketch


def check_index(device, num_slots, num_ids, seed=0, turns=8):
    """Ids are put and removed at random; the tables are rebuilt now and then."""
    draw = torch.Generator().manual_seed(seed)
    known = torch.tensor([0, num_ids - 1, *range(40), *(5 + (k << 32) for k in range(9))])
    known = known[known < num_ids].unique()
    held = torch.full((num_slots,), -1)
    probed, plain = ProbedSlots(num_slots, torch.device(device)), SortedSlots()
    plain.rebuild(held)
    for _ in range(turns):
        free = (held < 0).nonzero().flatten()
        absent = known[~torch.isin(known, held)]
        num = min(len(free), len(absent), int(torch.randint(0, 2 * num_slots, (), generator=draw)))
        ids = absent[torch.randperm(len(absent), generator=draw)[:num]]
        places = free[torch.randperm(len(free), generator=draw)[:num]]
        held[places] = ids
        plain.put(ids, places, held)
        there = held.to(device)
        probed.put(ids.to(device), places.to(device), there)
        found = probed.find(known.to(device), there).cpu()
        assert torch.equal(found, plain.find(known, held))
        gone = (held >= 0).nonzero().flatten()
        gone = gone[torch.rand(len(gone), generator=draw) < 0.4]
        probed.remove(held[gone].to(device), there)
        held[gone] = -1
    assert probed.find(known[:0].to(device), held.to(device)).shape == (0,)


def check_sketch(device, num_buckets, num=60, seed=0):
    sketch = CountMinSketch(num_buckets, seed)
    amounts, hashes = sketch.amounts.to(device).clone(), sketch.hashes.to(device)
    draw = torch.Generator().manual_seed(seed)
    worth = torch.rand(num, generator=draw)
    other = worth.to(device).clone()
    for turn in range(4):
        ids = torch.randperm(1 << 20, generator=draw)[:num] << (turn * 12)
        slots = torch.randperm(num, generator=draw) - num // 3
        amount = torch.tensor(1.0 + turn / 3)
        sketch.count_uses(ids, slots, worth, amount)
        there = ids.to(device)
        count_uses_by_triton(amounts, hashes, there, slots.to(device), other, float(amount))
        given = torch.rand(num, generator=draw) * 3
        sketch.lift(ids, given)
        lift_by_triton(amounts, hashes, there, given.to(device))
        assert torch.equal(sketch.estimate(ids), estimate_by_triton(amounts, hashes, there).cpu())
        assert torch.equal(sketch.amounts, amounts.cpu())
        assert torch.equal(worth, other.cpu())


def check_directory(device):
    """The index and the sketch, small and crowded."""
    for num_slots, num_ids in ((1, 1), (2, 40), (33, 1 << 40)):
        check_index(device, num_slots, num_ids)
    for num_buckets in (1, 7, 200):
        check_sketch(device, num_buckets)
