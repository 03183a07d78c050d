"""Run by torchrun: ranks save their rows into one folder, and load what other ranks saved."""

import os
import resource
import shutil
import sys
from pathlib import Path

import torch

import outsize
from outsize.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from outsize.contracts import RowUpdate, Shard
from outsize.errors import CheckpointError
from outsize.ranks.collectives import barrier, gather_values, process_group, rank, world_size
from outsize.stores.row_files import rows_writer

SPECS = [outsize.TableSpec("wide", 1003, 4), outsize.TableSpec("thin", 20, 2)]
LARGER = [outsize.TableSpec("wide", 1010, 4), outsize.TableSpec("thin", 21, 2)]
folder = Path(sys.argv[2])


def own_share(specs):
    store = outsize.LocalStore(specs, seed=1, shard=Shard(rank(), world_size()))
    outsize.RowAdagrad(store)
    return store


def fill(store):
    for part in store.parts():
        rows = torch.arange(part.num_rows) * part.every + part.first
        part.tensors["rows"].copy_(rows.unsqueeze(1).expand_as(part.tensors["rows"]))
        part.tensors["clocks"].copy_(rows + 1)
        part.tensors["state.sum"].copy_(rows.unsqueeze(1) / 8)


def content(store):
    return {f"{p.table}/{n}": t.clone() for p in store.parts() for n, t in p.tensors.items()}


def complaint(action):
    """What each rank says when all are to refuse."""
    try:
        action()
    except CheckpointError as error:
        message = str(error)
    else:
        message = ""
    barrier()
    everyone = gather_values(message)
    assert all(everyone), everyone
    assert all("\n" not in words for words in everyone)
    return everyone


def check_saving():
    store = own_share(SPECS)
    fill(store)
    outsize.save_rows(store, folder / "rows")
    names = {path.name for path in (folder / "rows").iterdir()}
    expected = {f"rows-{i:05d}-of-{world_size():05d}.safetensors" for i in range(world_size())}
    assert names == expected | {"rows.json", "manifest.json"}, names


def check_a_rank_that_cannot_write_stops_all(number):
    """RLIMIT_FSIZE makes the kernel refuse to write past a size, as a full disk would."""
    root, store = folder / f"full-{number}", own_share(SPECS)
    save_checkpoint(root, 1, {"a": torch.arange(9)}, write_more=rows_writer(store))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank() == number:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    words = complaint(
        lambda: save_checkpoint(root, 2, {"a": 1}, keep=1, write_more=rows_writer(store))
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert all("could not write checkpoint" in word and "File too large" in word for word in words)
    assert all(w.startswith(f"rank {number}: ") == (r != number) for r, w in enumerate(words))
    assert [path.name for path in root.iterdir()] == ["step-0000000001"]
    outsize.load_rows(store, root / "step-0000000001")
    save_checkpoint(root, 2, {"a": 1}, keep=1, write_more=rows_writer(store))
    barrier()  # the first rank removes what is not kept
    assert [path.name for path in root.iterdir()] == ["step-0000000002"]


def check_the_state_of_the_first_rank_is_saved_once():
    root = folder / "state"
    saved = save_checkpoint(root, 3, {"rank": rank()})
    assert load_checkpoint(saved) == {"rank": 0}
    assert save_checkpoint(root, 3, {"rank": 9}) == saved
    if rank() == 0:
        shutil.copytree(saved, root / "step-0000000004.partial")
    barrier()
    assert latest_checkpoint(root) == saved
    assert [path.name for path in root.iterdir()] == [saved.name]


def check_a_damaged_file_stops_all_before_anything_is_changed():
    if rank() == 0:
        shutil.copytree(folder / "rows", folder / "damaged")
        path = folder / "damaged" / f"rows-00001-of-{world_size():05d}.safetensors"
        flipped = bytearray(path.read_bytes())
        flipped[-5] ^= 4
        path.write_bytes(flipped)
    barrier()
    store = own_share(SPECS)
    before = content(store)
    words = complaint(lambda: outsize.load_rows(store, folder / "damaged"))
    assert all("rows-00001" in word and "checksum" in word for word in words)
    assert words[2].startswith("rank 1: ")
    after = content(store)
    assert all(torch.equal(before[name], after[name]) for name in before)


def check_loading_into_larger_tables():
    store, expected = own_share(LARGER), own_share(LARGER)
    new = outsize.load_rows(store, folder / "rows")
    assert new == {"wide": 7, "thin": 1}
    for part in expected.parts():
        old = len(range(part.first, {"wide": 1003, "thin": 20}[part.table], part.every))
        rows = torch.arange(old) * part.every + part.first
        part.tensors["rows"][:old] = rows.unsqueeze(1).float()
        part.tensors["clocks"][:old] = (rows + 1).int()
        part.tensors["state.sum"][:old] = rows.unsqueeze(1) / 8
    found, wanted = content(store), content(expected)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    replicas = outsize.stores.replicated_local_store(LARGER, seed=1)
    outsize.RowAdagrad(replicas)
    outsize.save_rows(store, folder / "larger")
    outsize.load_rows(replicas, folder / "larger")
    outsize.save_rows(replicas, folder / "replicas")
    names = {path.name for path in (folder / "replicas").glob("rows-*")}
    assert names == {f"rows-00000-of-{world_size():05d}.safetensors"}, names


def cached(num_rows=200, eviction="lru", specs=SPECS, **options):
    store = outsize.CachedStore(
        outsize.ShardedStore(specs, **options), num_rows, 5, 2, eviction=eviction
    )
    outsize.RowAdagrad(store)
    return store


def use(store):
    draws = torch.Generator().manual_seed(rank())
    for _ in range(5):
        ids = torch.randint(store.layout.num_rows, (100,), generator=draws).unique()
        rows = store.exchange(None, ids).rows
        ones = tuple(map(torch.ones_like, rows))
        store.submit(RowUpdate(ids, ones, torch.ones_like(ids)))


def check_caches_come_back_where_they_fit_and_begin_empty_otherwise():
    first = cached()
    use(first)
    outsize.save_rows(first, folder / "cached")
    others = [
        {"num_rows": 300}, {"num_rows": 50}, {"eviction": "lfu"}, {"specs": LARGER},
        {"specs": SPECS[::-1]}, {"specs": SPECS[:1]}, {"num_owners": 1},
        {"num_rows": 200 + 10 * rank()},  # fits on the first rank only
    ]  # fmt: skip
    expected = first.read(torch.arange(1003), "wide")
    for options in others:
        other = cached(**options)
        outsize.load_rows(other, folder / "cached", allow_dropped=True)
        assert not any(bool((copies.ids >= 0).any()) for copies in other.copies), options
        assert torch.equal(other.read(torch.arange(1003), "wide"), expected), options
        use(other)
    same = cached()
    outsize.load_rows(same, folder / "cached")
    before, after = first.rank_state(), same.rank_state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert bool((same.copies[0].ids >= 0).any())


with process_group(torch.device("cpu")):
    if sys.argv[1] == "save":
        check_caches_come_back_where_they_fit_and_begin_empty_otherwise()
        check_saving()
        check_a_rank_that_cannot_write_stops_all(0)
        check_a_rank_that_cannot_write_stops_all(2)
        check_the_state_of_the_first_rank_is_saved_once()
        check_a_damaged_file_stops_all_before_anything_is_changed()
    else:
        check_loading_into_larger_tables()
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
