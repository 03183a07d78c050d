"""A model trained by Adam over rounding wires is as good as one whose numbers are not rounded."""

import functools

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import outsize
from outsize.data.synthetic import SyntheticConfig
from outsize.metrics import exact_auc
from outsize.models import DeepFM
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import CachedStore, ShardedStore

NUM_STEPS, BATCH_SIZE, SEEDS = 300, 256, (0, 1, 2)


@functools.cache
def make_log(seed):
    vocabulary = (10, 50, 200, 1_000, 3_000, 6_000)
    return SyntheticConfig(num_train=200_000, vocabulary=vocabulary, seed=seed).build()


def average(ranks, parameters):
    """Mean gradients over ranks, as DDP makes them."""
    mine = torch.cat([parameter.grad.flatten() for parameter in parameters])
    content = mine.view(torch.uint8)
    theirs = ranks.swap_bytes([content] * ranks.size, [content.shape[0]] * ranks.size)
    mean = torch.stack([part.view(torch.float32) for part in theirs]).mean(dim=0)
    for parameter, part in zip(
        parameters, mean.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = part.view_as(parameter)


def train(ranks, wire, read_staleness, seed):
    """The test AUC of a small DeepFM whose rows two ranks share."""
    log = make_log(seed)
    init = outsize.Init("normal", 0.01)
    specs = [outsize.TableSpec(n, size, 9, init) for n, size in log.vocabularies.items()]
    inner = ShardedStore(specs, seed=seed, group=ranks, wire=wire)
    store = CachedStore(inner, 2_000, read_staleness, 0, "lru")
    features = [outsize.FeatureSpec(name) for name in log.vocabularies]
    model = DeepFM(log.num_dense, outsize.EmbeddingCollection(features, store), (64, 32), seed=seed)
    rows = outsize.RowAdam(store, learning_rate=0.01)
    dense = torch.optim.Adam(model.parameters(), lr=0.003)
    batches = log.batches("train", BATCH_SIZE, rank=ranks.rank, world_size=ranks.size)
    for _, batch in zip(range(NUM_STEPS), batches, strict=False):
        loss = binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)
        dense.zero_grad()
        loss.backward()
        average(ranks, list(model.parameters()))
        dense.step()
        rows.step()
    store.flush()
    model.eval()
    test = log.examples("test", 0, 40_000)
    with torch.no_grad():
        return exact_auc(model(test.dense, test.ids), test.labels)


def mean_auc(wire, read_staleness):
    found = [run_as_ranks(2, lambda r, s=s: train(r, wire, read_staleness, s))[0] for s in SEEDS]
    return sum(found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("read_staleness", [0, 10])
def test_rounding_wires_cost_adam_no_auc(read_staleness, unchecked_shapes):
    exact = mean_auc("float32", read_staleness)
    assert exact > 0.7
    for wire in ("bfloat16", "int8"):
        assert abs(mean_auc(wire, read_staleness) - exact) < 0.001, wire
