"""GraphSAGE with the mean in plain torch: `nn.Embedding`, torch's optimizers, sampled training.

It shares the sampler and the order of batches with Outsize, and nothing else: no collection, no
store, no layers of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outsize.contracts.neighborhood import Neighborhood
from outsize.data import GraphData
from outsize.data.graphs.sampling import NeighborSampler


@dataclass(frozen=True)
class PlainSettings:
    """What both models share.

    Attributes:
        dim: Width of rows.
        hidden: Width of layers.
        fan_out: Neighbours per hop.
        dropout: Share of numbers dropped at the input of each layer.
        seed_dropout: Share of seeds whose inputs are zero.
        row_rate: Learning rate of rows, trained by Adagrad.
        rate: Learning rate of the other weights, trained by AdamW.
        batch_size: Nodes per step.
        epochs: Passes over the training nodes.
    """

    dim: int = 64
    hidden: int = 64
    fan_out: tuple[int, ...] = (10, 10)
    dropout: float = 0.5
    seed_dropout: float = 0.5
    row_rate: float = 0.05
    rate: float = 0.001
    batch_size: int = 512
    epochs: int = 10


class PlainGraphSAGE(nn.Module):
    """h'_v = relu(W_type h_v + Σ_r W_r mean h_u + b), and a linear layer for the classes."""

    def __init__(self, data: GraphData, settings: PlainSettings) -> None:
        super().__init__()
        assert data.labels is not None
        self.graph, self.settings = data.graph, settings
        self.rows: Any = nn.ModuleDict(
            {kind: nn.Embedding(nodes.num_nodes, settings.dim, sparse=True)
             for kind, nodes in data.graph.nodes.items()}
        )  # fmt: skip
        bound = settings.dim**-0.5
        for weight in self.rows.parameters():
            nn.init.uniform_(weight, -bound, bound)
        self.own: Any = nn.ModuleList()
        self.others: Any = nn.ModuleList()
        width = settings.dim
        for _ in settings.fan_out:
            self.own.append(
                nn.ModuleDict({kind: _linear(width, settings.hidden) for kind in data.graph.nodes})
            )
            self.others.append(
                nn.ModuleDict(
                    {name: _linear(width, settings.hidden, False) for name in data.graph.relations}
                )
            )
            width = settings.hidden
        self.head = _linear(width, len(data.labels.class_names))

    def forward(self, hood: Neighborhood) -> Tensor:
        """Logits of the seeds, in training mode."""
        settings, num_layers = self.settings, len(self.own)
        vectors = {kind: self.rows[kind](nodes) for kind, nodes in hood.nodes.items()}
        kind, count = hood.seed_type, hood.within[hood.seed_type][0]
        stays = torch.ones(len(vectors[kind]), 1)
        stays[:count] = (torch.rand(count, 1) >= settings.seed_dropout).float()
        vectors[kind] = vectors[kind] * stays
        for number, (own, others) in enumerate(zip(self.own, self.others, strict=True)):
            hops = num_layers - 1 - number
            vectors = {
                name: F.dropout(values, settings.dropout) for name, values in vectors.items()
            }
            found = {
                name: layer(vectors[name][: hood.within[name][hops]]) for name, layer in own.items()
            }
            for name, relation in self.graph.relations.items():
                mean = _mean(vectors[relation.source], *hood.edges[name].within(hops))
                found[relation.target] = found[relation.target] + others[name](mean)
            vectors = {name: values.relu() for name, values in found.items()}
        logits: Tensor = self.head(vectors[kind])[hood.seeds]
        return logits

    @torch.no_grad()
    def predict(self) -> dict[str, Tensor]:
        """Logits of all nodes of each type, from all neighbours."""
        vectors = {kind: table.weight for kind, table in self.rows.items()}
        for own, others in zip(self.own, self.others, strict=True):
            found = {kind: layer(vectors[kind]) for kind, layer in own.items()}
            for name, relation in self.graph.relations.items():
                edges = [torch.from_numpy(part.astype(np.int64))
                         for part in (relation.starts, relation.sources)]  # fmt: skip
                mean = _mean(vectors[relation.source], *edges)
                found[relation.target] = found[relation.target] + others[name](mean)
            vectors = {kind: values.relu() for kind, values in found.items()}
        return {kind: self.head(values) for kind, values in vectors.items()}


def train_plain(data: GraphData, settings: PlainSettings, seed: int) -> dict[str, float]:
    """Train, and return the accuracies of the epoch with the best validation."""
    assert data.labels is not None
    torch.manual_seed(seed)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch asks to be told
    model = PlainGraphSAGE(data, settings)
    rows = list(model.rows.parameters())
    dense = [weight for name, weight in model.named_parameters() if not name.startswith("rows.")]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Adagrad(rows, lr=settings.row_rate),
        torch.optim.AdamW(dense, lr=settings.rate, weight_decay=0.0),
    ]
    sampler = NeighborSampler(data.graph, settings.fan_out, seed)
    classes, kind = torch.from_numpy(data.labels.classes), data.labels.node_type
    best: dict[str, float] = {"validation": -1.0}
    number = 0
    for _ in range(settings.epochs):
        for nodes in _batches(data.labelled["train"], settings.batch_size):
            hood = sampler.sample(nodes, kind, number)
            loss = F.cross_entropy(model(hood), classes[nodes])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            number += 1
        predicted = model.predict()[kind].argmax(dim=1)
        found = {
            str(split): float((predicted[nodes] == classes[nodes]).double().mean())
            for split, nodes in data.labelled.items()
        }
        if found["validation"] > best["validation"]:
            best = found
    return best


def _batches(nodes: Any, size: int) -> Iterator[Any]:
    order = nodes[torch.randperm(len(nodes)).numpy()]
    yield from np.split(order, range(size, len(order), size))


def _linear(fan_in: int, fan_out: int, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(fan_in, fan_out, bias=bias)
    nn.init.normal_(layer.weight, 0.0, (2 / (fan_in + fan_out)) ** 0.5)
    if bias:
        nn.init.normal_(layer.bias, 0.0, (1 / fan_out) ** 0.5)
    return layer


def _mean(vectors: Tensor, starts: Tensor, sources: Tensor) -> Tensor:
    """The mean of each target's sources."""
    sizes = starts.diff()
    lines = torch.arange(len(sizes)).repeat_interleave(sizes)
    total = torch.zeros(len(sizes), vectors.shape[1]).index_add(0, lines, vectors[sources])
    return total / sizes.clamp_min(1).unsqueeze(1)
