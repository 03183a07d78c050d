"""Run by torchrun: replicas of a table stay equal through training and clustering."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

import outsize
from outsize.collectives import gather_rows, process_group, rank, world_size


def equal_on_all_ranks(tensor):
    everyone = gather_rows(tensor.detach().flatten().view(torch.uint8))
    return all(torch.equal(everyone[0], other) for other in everyone)


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
    assert equal_on_all_ranks(table.weight)
    assert int(table.num_clusterings) == 2
    print(f"rank {rank()} of {world_size()} is content", flush=True)
os._exit(0)
