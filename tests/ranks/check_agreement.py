"""Run by torchrun: ranks that do not do the same all raise, over a real network."""

import os
from functools import partial

import torch

import outsize
from outsize.errors import IdError, RanksError
from outsize.ranks.collectives import gather_values, process_group, rank
from outsize.stores import ServedStore
from outsize.testing.checks import refusal

SPECS = [outsize.TableSpec("wide", 30, 4), outsize.TableSpec("thin", 20, 4)]
IDS = torch.arange(0, 40, 3)


def all_say(action, *expected):
    everyone = gather_values(refusal(RanksError, action))
    assert len(set(everyone)) == 1, everyone
    assert all(words in everyone[0] for words in expected), everyone[0]


def check_stores_made_unalike():
    specs = SPECS if rank() == 0 else SPECS[::-1]
    all_say(lambda: outsize.ShardedStore(specs).exchange(None, IDS), "rank 0 has table 'wide'")
    all_say(lambda: outsize.stores.replicated_local_store(specs), "rank 1 has table 'thin'")
    all_say(lambda: ServedStore(specs), "rank 1 has table 'thin'")
    wire = "int8" if rank() == 1 else "float32"
    all_say(lambda: ServedStore(SPECS, wire=wire), "but rank 1 has wire int8")


def check_training_against_evaluating():
    store = outsize.CachedStore(outsize.ShardedStore(SPECS), 10, 2, 2)
    outsize.RowSGD(store)
    read = store.peek if rank() else partial(store.exchange, None)
    all_say(
        lambda: read(IDS), "rank 0 a read for training by a cache, rank 1 a read for evaluation"
    )


def check_an_id_out_of_range_on_one_rank():
    store = outsize.ShardedStore(SPECS)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("wide")], store)
    batch = {"wide": torch.tensor([1, 99 if rank() else 2])}
    words = refusal(IdError if rank() else RanksError, lambda: embeddings(batch))
    assert ("id 99" if rank() else "rank 1 failed") in words, words


with process_group(torch.device("cpu")):
    check_stores_made_unalike()
    check_training_against_evaluating()
    check_an_id_out_of_range_on_one_rank()
    print(f"rank {rank()} has passed", flush=True)
os._exit(0)
