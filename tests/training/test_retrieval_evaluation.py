"""Rankings of all items."""

import pytest
import torch
from retrieval_runs import PLAIN, make_config, make_loop, without_strays
from test_loop import assert_same_tree

from outsize.training.tasks import RetrievalTask


def by_hand(task, split):
    """Metrics of a split, a query at a time, from all scores."""
    model, data = task.model.eval(), task.data
    with torch.no_grad():
        queries = model.encode_queries(data.queries.features)
        scores = 20 * queries @ model.encode_items(data.items.features).T
    losses, recalls = [], []
    known, relevant = data.known(split), data.relevant(split)
    for query in range(data.queries.num_rows):
        wanted, _ = relevant.flat(torch.tensor([query]))
        seen, _ = known.flat(torch.tensor([query]))
        if not len(wanted):
            continue
        allowed = scores[query].clone()
        allowed[seen] = -torch.inf
        best = allowed.argsort(descending=True)[:20]
        recalls.append(float(torch.isin(wanted, best).float().mean()))
        others = allowed.clone()
        others[wanted] = -torch.inf
        for item in wanted:
            both = torch.stack((allowed[item], others.logsumexp(dim=0)))
            losses.append(float(both.logsumexp(dim=0) - allowed[item]))
    return sum(losses) / len(losses), sum(recalls) / len(recalls), len(recalls)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_ranks_all_items_but_those_known(split):
    task = RetrievalTask(make_config("train.eval_batch_size=7"))
    found = task.evaluate(split)
    assert task.model.training
    loss, recall, count = by_hand(task, split)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["recall@20"] == pytest.approx(recall)
    assert found["num_queries"] == count


def test_evaluation_changes_nothing():
    config = make_config()
    task = RetrievalTask(config)
    before = {name: value.clone() for name, value in task.negatives.state_dict().items()}
    rows = task.model.embeddings.store.read(torch.arange(50), "item").clone()
    first = task.evaluate("validation")
    assert task.evaluate("validation") == first
    assert_same_tree(dict(task.negatives.state_dict()), before)
    assert torch.equal(task.model.embeddings.store.read(torch.arange(50), "item"), rows)


def test_a_trained_model_ranks_far_better_than_popularity():
    config = without_strays(
        *PLAIN, "negatives.kind=exact", "negatives.beta=5.0", "train.epochs=8", "model.dim=8",
        "embeddings.dim=8", "data.num_queries=200", "embeddings.optimizer.learning_rate=0.3",
        "train.validate_every=1000", "data.temperature=0.2", "data.skew=0.2",
    )  # fmt: skip
    loop = make_loop(config)
    loop.fit()
    data = loop.task.data
    metrics = config.retrieval.metrics()
    popular = torch.argsort(data.item_counts, descending=True)
    rows = torch.arange(200)
    unknown = ~torch.isin(
        rows[:, None] * 50 + popular,
        torch.stack(data.known("test").pairs()).T @ torch.tensor([50, 1]),
    )
    ranked = torch.stack([popular[keep][:20] for keep in unknown])
    metrics.add(ranked, *data.relevant("test").flat(rows))
    assert loop.state.test["ndcg@10"] > 1.5 * metrics.result()["ndcg@10"]
