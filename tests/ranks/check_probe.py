"""Run by several ranks: rows of a probe and the tables stay equal, and errors are those of all."""

import os

import torch

import outsize
from outsize.errors import NonFiniteError, OutsizeError
from outsize.ranks.collectives import gather_rows, process_group, rank, world_size
from outsize.tables import PackedCCETable
from outsize.testing.checks import refusal

SPEC = outsize.TableSpec("ad", num_rows=400, dim=8)
TARGET = torch.randn(400, 8, generator=torch.Generator().manual_seed(5))


def equal_on_all_ranks(tensor):
    everyone = gather_rows(tensor.detach().contiguous().flatten().view(torch.uint8))
    return all(torch.equal(everyone[0], other) for other in everyone)


def make_table():
    return outsize.build_table("cce", SPEC, max_params=256, columns=2, seed=1)


def train(block, table, ids, own):
    """Steps on batches of 64 ids, of which a rank has its own part."""
    for batch in ids.split(64):
        some = batch[own] if block.contains("ad", batch[own]).any() else batch[:0]
        total = (table(some) - TARGET[some]).square().sum()
        block.step(total * (world_size() / batch.numel()))


def check_ranks_equal_one_process():
    ids = torch.randint(400, (1024,), generator=torch.Generator().manual_seed(3))
    counts = {"ad": ids.bincount(minlength=400)} if rank() == 0 else None
    table = make_table()
    probe = outsize.Probe({"ad": table}, counts, blocks=3, rate=0.2, helper=False)
    found = []
    own = slice(rank(), None, world_size())
    for number in range(3):
        with probe.block(number) as block:
            train(block, table, ids, own)
            rows = block.rows["ad"].rows
            assert equal_on_all_ranks(rows)
            found.append((block.rows["ad"].ids, rows.detach().clone()))
    optimizer = torch.optim.Adam(table.parameters())
    probe.apply(optimizer)
    for value in table.state_dict().values():
        assert equal_on_all_ranks(value)
    assert table.num_helper == 0
    assert int(table.num_clusterings) == 1
    # One process with the batches of all: up to the order of sums.
    alone = make_table()
    for mine, rows in found:
        expected, sums = alone(mine).detach().clone(), torch.zeros(len(mine))
        for batch in ids.split(64):
            at = torch.searchsorted(mine, batch).clamp_max(len(mine) - 1)
            at = at[mine[at] == batch]
            gradient = torch.zeros_like(expected)
            gradient.index_add_(0, at, 2 * (expected[at] - TARGET[mine[at]]) / batch.numel())
            sums += gradient.square().mean(dim=1)
            expected -= 0.2 * gradient / (sums.sqrt() + 1e-10).unsqueeze(1)
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)


def check_nan_of_one_rank_is_refused_by_all():
    table = make_table()
    before = table.weight.detach().clone()
    for culprit in range(world_size()):
        probe = outsize.Probe({"ad": table}, blocks=2)

        def step(probe=probe, culprit=culprit):
            with probe.block(0) as block:
                factor = float("nan") if rank() == culprit else 1.0
                block.step(table(torch.arange(400)).sum() * factor)

        error = refusal(NonFiniteError, step)
        assert "rows of a probe became NaN or infinite" in error, error
    # What the first rank alone knows to be wrong is refused by all.
    wrong = {"ad": torch.ones(3, dtype=torch.int64)} if rank() == 0 else None
    error = refusal(OutsizeError, lambda: outsize.Probe({"ad": table}, wrong))
    assert "counts must be 400 numbers" in error, error
    packed = PackedCCETable(SPEC, num_buckets=16, num_slots=100, columns=2)
    many = {"ad": torch.arange(401)} if rank() == 0 else None
    error = refusal(OutsizeError, lambda: outsize.Probe({"ad": packed}, many))
    assert "counts must be 400 numbers" in error, error
    assert torch.equal(table.weight, before)


with process_group(torch.device("cpu")):
    check_ranks_equal_one_process()
    check_nan_of_one_rank_is_refused_by_all()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
