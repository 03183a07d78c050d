"""Run by two ranks: the loss over texts in DDP, with one cache for all ranks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
import torch.nn.functional as F
from tiny_texts import make_pairs
from torch.nn.parallel import DistributedDataParallel
from word_bags import WordBags

from outsize.errors import RanksError
from outsize.integrations.sentence_transformers import NegativeCacheLoss, TextCacheSettings
from outsize.ranks.collectives import gather_values, process_group, rank, world_size

ANCHORS, TEXTS = make_pairs()


def make(seed=0, corpus=TEXTS, **settings):
    model = WordBags(seed=seed)
    settings = TextCacheSettings(precision="float32", num_refreshed=4, **settings)
    loss = NegativeCacheLoss(model, corpus, settings=settings)
    loss.model = DistributedDataParallel(model)  # as the Trainer does
    return model, loss


def batch(model, first, num):
    place = slice(first, first + num)
    return [model.preprocess(ANCHORS[place]), model.preprocess(TEXTS[place])]


def check_ranks_share_a_corpus_and_stay_equal(folder):
    model, loss = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.no_grad():
        everything = [
            F.normalize(model(model.preprocess(texts))["sentence_embedding"], dim=1)
            for texts in (ANCHORS, TEXTS)
        ]
    for step in range(3):
        first, num = 10 * step + 5 * rank(), 4 + rank()  # uneven batches
        found = loss(batch(model, first, num))
        if step == 0:
            logits = 20.0 * everything[0][first : first + num] @ everything[1].T
            expected = F.cross_entropy(logits, torch.arange(first, first + num))
            torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.commit()
    assert loss.cache.num_held == len(set(TEXTS))
    assert 0 < loss.cache.num_held_here < len(set(TEXTS))
    weights = gather_values(model.layer.weight.tolist())
    assert weights[0] == weights[1]
    loss.save(folder / "cache")
    _, again = make(seed=rank())
    again.load(folder / "cache")
    assert sorted(again.cache.own.keys.tolist()) == sorted(loss.cache.own.keys.tolist())
    if rank() == 0:
        assert len(list((folder / "cache").glob("cache-*-of-00002.safetensors"))) == 2


def check_ranks_with_another_order_of_texts_are_refused():
    backwards = TEXTS[:: 1 - 2 * rank()]  # as list(set(texts)) is another one in each process
    shifted = {number + rank(): text for number, text in enumerate(TEXTS)}
    for corpus, keys in ((backwards, "tokens"), (TEXTS[rank() :], "tokens"), (shifted, "label")):
        model, loss = make(corpus=corpus, keys=keys)
        with pytest.raises(RanksError, match=r"rank 0 has a corpus .*, but rank 1 has a corpus"):
            loss(batch(model, 0, 4), torch.arange(4))


with process_group(torch.device("cpu")):
    assert world_size() == 2
    check_ranks_with_another_order_of_texts_are_refused()
    check_ranks_share_a_corpus_and_stay_equal(Path(sys.argv[1]))
    if rank() == 0:
        print("all checks passed")
