"""Checks of the Triton kernels for rows beside their reference, for the interpreter and CUDA."""

import random

import torch

from outsize.kernels.distinct.distinct import key_type
from outsize.kernels.fused.fused import RowsInPlace
from outsize.kernels.gather.gather import Bags
from outsize.kernels.rows.rounding import round_at_random, rounding_keys
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule

RULES = [
    SGDRule(0.1),
    AdagradRule(0.1, eps=1e-8, row_wise=True),
    AdagradRule(0.1),
    AdamRule(0.01),
]
# Number of ids, number of rows, dim, and the exponent that makes small ids frequent.
SHAPES = [
    (1, 1, 4, 1),
    (5, 3, 1, 1),
    (40, 1, 3, 1),
    (300, 2, 8, 1),
    (300, 400, 5, 1),
    (700, 40_000, 16, 8),
]


def draw_ids(num, num_rows, skew=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(num, generator=generator) ** skew * num_rows).long()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draw_bags(num, scaled, device, seed=0):
    """Bags of 0 to 5 ids."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 6, (num,), generator=generator)
    edges = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    edges = edges[edges <= num]
    edges = torch.cat([edges, torch.tensor([num])]).to(device)
    scales = torch.rand(num, generator=generator).to(device) if scaled else None
    return Bags(edges, scales)


def summed(gradients, ids, num_rows, bags=None):
    """Σ of the gradients of each row in float64, and of their magnitudes."""
    if bags is not None:
        gradients = gradients[bags.lines_of(len(ids)).long()]
        if bags.scales is not None:
            gradients = gradients * bags.scales[:, None]
    total = torch.zeros(num_rows, gradients.shape[1], dtype=torch.float64, device=ids.device)
    size = total.clone()
    total.index_add_(0, ids, gradients.double())
    size.index_add_(0, ids, gradients.double().abs())
    return total, size


def assert_sums(num, num_rows, dim, skew, seed=0, device="cpu"):
    """Sums by row are exact to the rounding of float32, each row once, and finite."""
    from outsize.kernels.distinct.distinct_triton import distinct_by_triton, sorted_runs
    from outsize.kernels.gather.sums_triton import sum_by_triton

    ids = draw_ids(num, num_rows, skew, seed).to(device)
    gradients = normal(num, dim, seed=seed).to(device)
    is_bad = torch.zeros(1, dtype=torch.int32, device=device)
    keys = ids.to(key_type(num_rows))
    found = sorted_runs(keys)
    totals = sum_by_triton(gradients, found, num_rows, is_bad)
    unique, inverse = torch.unique(ids, return_inverse=True)
    assert int(found.runs[-1]) + 1 == len(unique)
    assert torch.equal(totals.keys[: len(unique)].long(), unique)
    total, size = summed(gradients, inverse, len(unique))
    error = (totals.lines[: len(unique)] - total).abs()
    assert bool((error <= 1e-6 * size + 1e-30).all())
    assert int(is_bad) == 0
    listed = distinct_by_triton(keys)
    assert torch.equal(listed.ids, unique)
    assert torch.equal(listed.inverse, inverse)
    gradients[num // 2, dim // 2] = float("inf")
    sum_by_triton(gradients, found, num_rows, is_bad)
    assert int(is_bad) == 1


def assert_gathers(dim, dtype, device="cpu"):
    """Lines equal rows bit for bit, ids out of bounds read row 0, and bags are sums."""
    from outsize.kernels.gather.gather_triton import read_columns_by_triton, read_lines_by_triton

    rows = normal(60, dim).to(dtype).to(device)
    ids = torch.stack([draw_ids(30, 40), draw_ids(30, 20, seed=1)], dim=1).to(device)
    ids[3, 0], ids[4, 1], ids[5, 1] = 40, -7, 99
    bounds, offsets = torch.tensor([40, 20], device=device), torch.tensor([0, 40], device=device)
    worst = torch.full((2,), -9, device=device)
    keys = torch.empty(60, dtype=torch.int16, device=device)
    lines = read_columns_by_triton(rows, ids, bounds, offsets, worst, keys)
    expected = torch.where((ids < 0) | (ids >= bounds), 0, ids) + offsets
    assert torch.equal(keys.long(), expected.flatten())
    assert torch.equal(lines, rows[expected.flatten()].float())
    assert worst.tolist() == [40, 99]
    assert torch.equal(read_lines_by_triton(rows, keys, None), lines)
    for scaled in (False, True):
        bags = draw_bags(60, scaled, device)
        pooled = torch.zeros(bags.num_bags, dim, device=device)
        scales = torch.ones(60, device=device) if bags.scales is None else bags.scales
        pooled.index_add_(0, bags.lines_of(60).long(), lines * scales[:, None])
        torch.testing.assert_close(read_lines_by_triton(rows, keys, bags), pooled)


def updated(rule, table, places, gradients, ticks=None, squares=None):
    """A table after an update by the kernel."""
    from outsize.kernels.rows.updates_triton import update_by_triton

    number, given = rule.kernel_settings()
    settings = torch.zeros(8)
    settings[: len(given)] = torch.tensor(given)
    update_by_triton(
        number, settings.to(table.rows.device), table.rows, table.state, table.clocks, places,
        gradients, seed=table.seed, first_id=table.start, ticks=ticks, squares=squares,
    )  # fmt: skip


def assert_rounds(dtype, device="cpu"):
    """Rounded rows equal those of the reference bit for bit, of any magnitude."""
    num, dim = 40, 24
    values = normal(num, dim).mul_(10.0 ** torch.linspace(-9, 6, num)[:, None])
    values[3, :6] = torch.tensor([0.0, 1.0, -2.5, 65504.0, 70000.0, 3.3e38])
    rows = torch.zeros(2 * num, dim, dtype=dtype)
    clocks = torch.arange(2 * num, dtype=torch.int32)
    places = torch.randperm(2 * num, generator=torch.Generator().manual_seed(1))[:num]
    ticks = torch.arange(num) % 3
    keys = rounding_keys(7, places + 1000, (clocks[places] + ticks).long(), ticks)
    expected = rows.index_copy(0, places, round_at_random(values, dtype, keys))
    table = RowsInPlace(rows.clone().to(device), {}, clocks.clone().to(device), 1000, 7)
    updated(SGDRule(1.0), table, places.to(device), -values.to(device), ticks.to(device))
    assert torch.equal(table.rows.cpu().view(torch.int16), expected.view(torch.int16))
    assert torch.equal(table.clocks.cpu(), clocks.index_add(0, places, ticks.int()))


def new_table(rule, num_rows, dim, dtype, device):
    state = {
        name: torch.full((num_rows, width), rule.state_fill(name), device=device)
        for name, width in rule.state_widths(dim).items()
    }
    clocks = torch.zeros(num_rows, dtype=torch.int32, device=device)
    return RowsInPlace(normal(num_rows, dim).to(dtype).to(device), state, clocks, 3, 5)


def state_error(rule, state, total, error):
    """How much state changes with an error of its gradients, for state that grows with |g|."""
    found = []
    for gradients in (total.abs() + error, total.abs()):
        own = {name: part.double() for name, part in state.items()}
        rule.step(torch.zeros_like(total), own, gradients)
        found.append(own)
    more, exact = found
    return {name: (more[name] - exact[name]).float() for name in state}


def assert_trains(rule, dtype, bagged, device="cpu", num=150, num_rows=50, dim=6, steps=3):
    """Rows, state and clocks after each of several steps are those of the reference.

    Where gradients cancel, a sum in float32 has a large relative error, and its square twice that.
    So state may differ by what an error of 1e-6 · Σ|g| in Σg makes of it (cf. `assert_sums`).
    """
    from outsize.kernels.fused.fused_triton import DeviceUpdates, look_up, train

    ours, theirs = (new_table(rule, num_rows, dim, dtype, device) for _ in range(2))
    memory = DeviceUpdates(torch.device(device))
    for step in range(steps):
        ids = draw_ids(num, num_rows, seed=step).to(device) + 3
        bags = draw_bags(num, bagged == "scaled", device, step) if bagged else None
        keys, lines = look_up(ours, ids, bags)
        gradients = normal(*lines.shape, seed=step).to(device)
        norm = train(ours, rule.kernel_settings(), memory, keys, bags, gradients).sum()
        total, size = summed(gradients, ids - 3, num_rows, bags)
        torch.testing.assert_close(norm.double(), total.square().sum(), rtol=1e-5, atol=1e-8)
        unique = torch.unique(ids - 3)
        values = theirs.rows[unique].float()
        state = {name: part[unique] for name, part in theirs.state.items()}
        slack = state_error(rule, state, total[unique], 1e-6 * size[unique])
        rule.step(values, state, total[unique].float())
        theirs.clocks[unique] += 1
        for name, part in state.items():
            theirs.state[name][unique] = part
        if dtype != torch.float32:
            keys = rounding_keys(5, unique + 3, theirs.clocks[unique].long(), unique * 0 + 1)
            values = round_at_random(values, dtype, keys)
        theirs.rows[unique] = values
        spacing = {torch.float32: 0.0, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}[dtype]
        torch.testing.assert_close(
            ours.rows.float(), theirs.rows.float(), rtol=1e-5 + spacing, atol=2e-5
        )
        assert torch.equal(ours.clocks, theirs.clocks)
        for name, part in ours.state.items():
            error = (part - theirs.state[name]).abs()
            allowed = 1e-5 + 1.3e-6 * theirs.state[name].abs()
            allowed[unique] += slack[name]
            assert bool((error <= allowed).all()), (name, float((error - allowed).max()))
            theirs.state[name].copy_(part)
        theirs.rows.copy_(ours.rows)
    before = [part.clone() for part in (ours.rows, ours.clocks, *ours.state.values())]
    flawed = torch.full_like(gradients, torch.nan)
    last = look_up(ours, ids, bags)[0]
    for refused in (flawed, gradients):
        norms = train(ours, rule.kernel_settings(), memory, last, bags, refused)
        assert bool(norms.sum().isnan())
    for part, old in zip((ours.rows, ours.clocks, *ours.state.values()), before, strict=True):
        assert torch.equal(part, old)


def assert_drawn(seed, most, device="cpu"):
    """The checks hold at a random number of ids, number of rows, dim, skew, rule and pooling."""
    draw = random.Random(seed)
    num, num_rows = (int(most ** draw.random()) for _ in range(2))
    dim = int(300 ** draw.random()) if device == "cuda" else draw.randint(1, 9)
    skew, bagged = draw.randint(1, 9), draw.choice(["", "sum", "scaled"])
    assert_sums(num, num_rows, dim, skew, seed, device)
    num = max(num, 5)  # with fewer ids, all bags may be empty
    assert_trains(
        draw.choice(RULES), torch.float32, bagged, device, num=num, num_rows=num_rows, dim=dim
    )


def assert_nothing_changes(device="cpu"):
    """A batch without ids changes nothing, with bags or without."""
    from outsize.kernels.fused.fused_triton import DeviceUpdates, look_up, train

    rule, memory = RULES[3], DeviceUpdates(torch.device(device))
    table = new_table(rule, 7, 3, torch.float32, device)
    before = [part.clone() for part in (table.rows, table.clocks, *table.state.values())]
    ids = torch.empty(0, dtype=torch.int64, device=device)
    for bags in (None, Bags(torch.zeros(3, dtype=torch.int64, device=device))):
        keys, lines = look_up(table, ids, bags)
        assert lines.shape == (0 if bags is None else 2, 3)
        assert not lines.any()
        norms = train(table, rule.kernel_settings(), memory, keys, bags, torch.ones_like(lines))
        assert float(norms.sum()) == 0
    for part, old in zip((table.rows, table.clocks, *table.state.values()), before, strict=True):
        assert torch.equal(part, old)


def assert_columns_are_read_in_place(device="cpu"):
    """Evenly spaced columns are not copied; any others are, and read the same."""
    from outsize.kernels.fused.fused_triton import side_by_side

    table = torch.arange(60, device=device).view(6, 10)
    for columns, is_copied in (
        (table.unbind(0), False),
        (table.unbind(1), False),
        (table[::2].unbind(0), False),
        (table[2:3].unbind(0), False),
        ([table[1], table[1]], False),
        (table.unbind(0)[::-1], True),
        ([table[0], table[1], table[3]], True),
        ([table[0], table[1].clone()], True),
        ([table[0, :6], table[:, 1]], True),
    ):
        found = side_by_side(columns)
        assert torch.equal(found, torch.stack(list(columns), dim=1))
        assert (found.data_ptr() != columns[0].data_ptr()) == is_copied
