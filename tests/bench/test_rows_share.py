"""The share of rows in a step of DLRM."""

from itertools import islice

import torch

from outsize.bench.rows_share import measure_rows_share, without_rows
from outsize.data import SyntheticConfig
from outsize.training.build import build_dense_optimizer
from outsize.training.config import OptimizerConfig, RunConfig, TrainConfig
from outsize.training.store_config import StoreConfig
from outsize.training.tasks import ClickTask


def small_task():
    data = SyntheticConfig(num_train=256, num_validation=1, num_test=1, largest_vocabulary=100)
    config = RunConfig(
        data=data,
        embeddings=StoreConfig(dim=4),
        optimizer=OptimizerConfig(kind="sgd", learning_rate=0.01),
        train=TrainConfig(batch_size=16),
    )
    task = ClickTask(config)
    return task, config, list(islice(task.train_batches(0, 0), 2))


def test_a_model_on_given_vectors_does_what_it_does_on_rows():
    task, _, (batch, _) = small_task()
    alone, given = without_rows(task.model)
    dense = {n: v for n, v in task.model.state_dict().items() if not n.startswith("embeddings")}
    alone.load_state_dict(dense)
    given.vectors = task.model.embeddings.stacked(batch.ids).detach().requires_grad_()
    logits = alone(batch.dense, batch.ids)
    assert torch.equal(logits, task.model(batch.dense, batch.ids))
    logits.sum().backward()
    assert given.vectors.grad.abs().sum() > 0


def test_shares_are_those_of_the_timings_and_rows_are_trained():
    task, config, batches = small_task()
    before = [part.tensors["clocks"].clone() for part in task.model.embeddings.store.parts()]

    def make(model):
        return build_dense_optimizer(config.optimizer, model)

    found = measure_rows_share(
        task.model, make(task.model), task.rows, batches, make, rounds=2, calls=1
    )
    step, dense, rows = (found[name]["median_s"] for name in ("step", "dense", "rows"))
    assert found["share"] == 1 - dense / step
    assert found["share_alone"] == rows / step
    after = [part.tensors["clocks"] for part in task.model.embeddings.store.parts()]
    # Four whole steps and four of rows alone, over two batches in turn; the dense ones touch none.
    assert max(int((a - b).max()) for a, b in zip(after, before, strict=True)) == 8
