"""A run on a graph has the losses of the same model in plain torch with `nn.Embedding`."""

import pytest
import torch
import torch.nn.functional as F
from graph_inputs import all_rows
from graph_runs import NODES, make_config
from retrieval_runs import make_loop
from torch import nn


class Plain(nn.Module):
    """GraphSAGE with the mean on a dense, normalized adjacency matrix of a graph of one type."""

    def __init__(self, task):
        super().__init__()
        rows = all_rows(task.embeddings)["node"].detach()
        self.rows = nn.Embedding.from_pretrained(rows.clone(), freeze=False)
        edges = task.data.graph.relations["edge"]
        num_nodes = len(edges.starts) - 1
        adjacency = torch.zeros(num_nodes, num_nodes)
        for node in range(num_nodes):
            for source in edges.sources[edges.starts[node] : edges.starts[node + 1]]:
                adjacency[node, source] += 1
        self.adjacency = adjacency / adjacency.sum(1, keepdim=True).clamp_min(1)
        self.own = nn.ModuleList(_copy(layer.own[0]) for layer in task.model.layers)
        self.others = nn.ModuleList(
            _copy(next(iter(layer.of_relation.values()))) for layer in task.model.layers
        )
        self.head = _copy(task.model.head)

    def forward(self, nodes):
        vectors = self.rows.weight
        for own, others in zip(self.own, self.others, strict=True):
            vectors = (own(vectors) + others(self.adjacency @ vectors)).relu()
        return self.head(vectors[nodes])


def _copy(layer):
    copy = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    copy.load_state_dict(layer.state_dict())
    return copy


@pytest.mark.parametrize(
    ("rows", "make_rows"),
    [
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.5)),
        ("full-adagrad", lambda weights: torch.optim.Adagrad(weights, lr=0.5, eps=1e-10)),
    ],
)
@pytest.mark.parametrize("kind", ["store", "tables"])
def test_losses_equal_those_of_plain_torch(kind, rows, make_rows):
    settings = [f"embeddings.optimizer.kind={rows}", "embeddings.optimizer.learning_rate=0.5"]
    dense = "sgd" if rows == "sgd" else "adagrad"
    if kind == "tables":
        settings = ["embeddings.kind=tables", "embeddings.learning_rate=0.5"]
    config = make_config(
        NODES, "graph.fan_out=[-1,-1]", f"optimizer.kind={dense}", "optimizer.learning_rate=0.5",
        "train.validate_every=1000", "train.epochs=2", *settings,
    )  # fmt: skip
    loop = make_loop(config)
    task = loop.task
    plain = Plain(task)
    weights = [weight for name, weight in plain.named_parameters() if name != "rows.weight"]
    optimizers = [make_rows([plain.rows.weight]), make_rows(weights)]
    steps = loop.steps()
    found, expected = [], []
    record = task.loss
    task.loss = lambda batch: found.append((batch, record(batch))) or found[-1][1]
    for _ in range(8):
        next(steps)
        batch, _ = found[-1]
        nodes = batch.neighborhood.nodes["node"][batch.neighborhood.seeds]
        total = F.cross_entropy(plain(nodes), batch.labels)
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()
        for optimizer in optimizers:
            optimizer.step()
        expected.append(float(total.detach()))
    steps.close()
    losses = [float(loss.detach()) for _, loss in found]
    assert losses == pytest.approx(expected, rel=1e-4)
    assert losses[-1] != pytest.approx(losses[0], rel=1e-2), "it learns"
