"""Run by two ranks: the Trainer in DDP, resumed, told nothing of its ranks, or with two losses."""

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from tiny_texts import make_pairs

from outsize.errors import ConfigError
from outsize.integrations.sentence_transformers import NegativeCacheLoss
from outsize.ranks.collectives import barrier, gather_values, rank, world_size

ANCHORS, TEXTS = make_pairs()


def train(folder, resume=False, use_cpu=True):
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    loss = NegativeCacheLoss(model, corpus=TEXTS)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "run"),
        use_cpu=use_cpu,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=5,
        num_train_epochs=1,
        save_steps=2,
        logging_steps=1,
    )
    data = Dataset.from_dict({"anchor": ANCHORS, "positive": TEXTS})
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=loss, callbacks=[loss.callback()]
    )
    trainer.train(resume_from_checkpoint=resume)
    assert loss.cache.num_held == len(set(TEXTS))
    assert loss.cache.num_held_here < len(set(TEXTS))
    weights = gather_values([weight.sum().item() for weight in model.parameters()])
    assert weights[0] == weights[1]
    return [(line["step"], line["loss"]) for line in trainer.state.log_history if "loss" in line]


def train_on_sets(folder, **options):
    """Train with a loss for each of two data sets; returns how often their caches were written."""
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    losses = {name: NegativeCacheLoss(model, corpus=TEXTS) for name in "ab"}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "run"),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        per_device_train_batch_size=4,
        max_steps=4,
        save_strategy="no",
        multi_dataset_batch_sampler="round_robin",
        **options,
    )
    data = {
        "a": Dataset.from_dict({"anchor": ANCHORS[:20], "positive": TEXTS[:20]}),
        "b": Dataset.from_dict({"anchor": ANCHORS[20:], "positive": TEXTS[20:]}),
    }
    callbacks = [loss.callback(f"cache_{name}") for name, loss in losses.items()]
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=data, loss=losses, callbacks=callbacks
    )
    trainer.train()
    return [loss.cache.clock for loss in losses.values()]


folder = Path(sys.argv[1])
if sys.argv[2] == "alone":
    with pytest.raises(ConfigError, match="set use_cpu=True"):
        train(folder, use_cpu=False)
elif sys.argv[2] == "sets":  # without splitting, rank 0 has a batch of a while rank 1 has one of b
    with pytest.raises(ConfigError, match=r"batches of different losses.*'split_batches': True"):
        train_on_sets(folder)
    assert train_on_sets(folder, accelerator_config={"split_batches": True}) == [2, 2]
else:
    whole = train(folder)
    assert len(whole) == 4  # 40 pairs in steps of 2 x 5
    barrier()
    if rank() == 0:
        shutil.rmtree(folder / "run" / "checkpoint-4")
    barrier()
    assert train(folder, resume=True) == whole
assert world_size() == 2
if rank() == 0:
    print("all checks passed")
