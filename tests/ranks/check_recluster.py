"""Run by torchrun: replicas of a table stay equal through training, clustering and its failure."""

import copy
import os

import torch
from torch.nn.parallel import DistributedDataParallel

import outsize
from outsize.errors import NonFiniteError, OutsizeError, ReclusterError
from outsize.interrupts import StopRequested, stopping_when
from outsize.ranks import first_rank
from outsize.ranks.collectives import gather_rows, process_group, rank, world_size
from outsize.testing.checks import refusal


def equal_on_all_ranks(tensor):
    everyone = gather_rows(tensor.detach().flatten().view(torch.uint8))
    return all(torch.equal(everyone[0], other) for other in everyone)


def snapshot(table, optimizer):
    return copy.deepcopy((table.state_dict(), list(optimizer.state.get(table.weight, {}).items())))


def assert_unchanged(table, optimizer, before):
    state, moments = before
    for name, value in table.state_dict().items():  # as bytes: NaN equals NaN
        assert torch.equal(
            value.reshape(-1).view(torch.uint8), state[name].reshape(-1).view(torch.uint8)
        )
    now = optimizer.state.get(table.weight, {})
    assert [name for name, _ in moments] == list(now)
    assert all(torch.equal(now[name], value) for name, value in moments)


def check_if_any_rank_raises_all_raise(table, optimizer):
    """A NaN of one rank, whichever it is, and an error that is none of ours."""
    for culprit in range(world_size()):
        kept = table.weight.detach().clone()
        if rank() == culprit:
            with torch.no_grad():
                table.weight[1, 1] = float("nan")
        before = snapshot(table, optimizer)
        error = refusal(NonFiniteError if rank() == culprit else ReclusterError,
                        lambda: table.recluster(optimizer))  # fmt: skip
        assert "'ad': its weight holds NaN" in error, error
        assert rank() == culprit or f"rank {culprit}: " in error, error
        assert_unchanged(table, optimizer, before)
        with torch.no_grad():
            table.weight.copy_(kept)

    def out_of_memory(ids):
        raise MemoryError("no room for the points")

    before = snapshot(table, optimizer)
    table._points_of = out_of_memory  # the first rank alone calls it
    error = refusal(MemoryError if rank() == 0 else ReclusterError,
                    lambda: table.recluster(optimizer))  # fmt: skip
    del table._points_of
    assert "no room for the points" in error, error
    assert_unchanged(table, optimizer, before)
    # Counts that the first rank alone knows are refused by all.
    wrong = torch.ones(3, dtype=torch.int64) if rank() == 0 else None
    error = refusal(OutsizeError, lambda: table.recluster(optimizer, wrong))
    assert "counts must be 2,000 numbers" in error, error
    # So is one table of several: the other is not changed either.
    bad = outsize.build_table("cce", outsize.TableSpec("bad", 2000, 8), max_params=800)
    if rank() == 0:
        with torch.no_grad():
            bad.weight[0] = float("inf")
    features = [outsize.FeatureSpec("ad"), outsize.FeatureSpec("bad")]
    both = outsize.EmbeddingCollection(features, {"ad": table, "bad": bad})
    error = refusal(OutsizeError, both.recluster)
    assert "'bad'" in error, error
    assert_unchanged(table, optimizer, before)


def check_if_any_rank_is_asked_to_stop_all_stop(table, optimizer):
    """Whoever is asked: ranks that wait are heard in the middle of a clustering."""
    first_rank._SYNC_INTERVAL_S = 0.0
    for asked in range(world_size()):
        before = snapshot(table, optimizer)
        calls = []

        def asks(asked=asked, calls=calls):
            calls.append(None)
            return rank() == asked and len(calls) > 3

        with stopping_when(asks):
            refusal(StopRequested, lambda: table.recluster(optimizer))
        assert rank() != asked or len(calls) > 3  # the clustering was under way
        assert_unchanged(table, optimizer, before)
    table.recluster(optimizer)
    assert equal_on_all_ranks(table.pointers)
    first_rank._SYNC_INTERVAL_S = 0.5


with process_group(torch.device("cpu")):
    spec = outsize.TableSpec("ad", num_rows=2000, dim=8)
    table = outsize.build_table("cce", spec, max_params=1000 * 8, columns=4, seed=1)
    assert isinstance(table, outsize.tables.CCETable)
    assert table.pointers.dtype == torch.int16
    buffers = [name for name, _ in table.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(table, buffers)
    parallel = DistributedDataParallel(table)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank())  # each rank has data of its own
    for step in range(30):
        ids = torch.randint(2000, (64,), generator=generator)
        optimizer.zero_grad()
        (parallel(ids) - ids.unsqueeze(1) / 1000).square().mean().backward()
        optimizer.step()
        if step in (9, 19):
            if rank() > 0:
                with torch.no_grad():  # whatever a rank computed for itself does not matter
                    table.weight[0, 0] += 1e-6 * rank()
            counts = torch.arange(2000) if rank() == 0 else None
            table.recluster(optimizer, counts)
            assert equal_on_all_ranks(table.pointers)
            assert equal_on_all_ranks(table.weight)
            assert equal_on_all_ranks(table.helper_hashes)
            assert equal_on_all_ranks(torch.tensor([table.codes_version]))
    assert equal_on_all_ranks(table.weight)
    assert int(table.num_clusterings) == 2
    check_if_any_rank_raises_all_raise(table, optimizer)
    check_if_any_rank_is_asked_to_stop_all_stop(table, optimizer)
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
