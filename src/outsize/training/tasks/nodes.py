"""Predicting the classes of nodes: one class per node, or several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts.neighborhood import Neighborhood
from outsize.data.click_data import SPLITS, Split, rank_parts
from outsize.data.graphs.sampling import NeighborSampler
from outsize.data.prefetch import prefetch
from outsize.data.shuffle import BLOCK_ROWS, BlockShuffle
from outsize.errors import DataError
from outsize.hashing import derive_seed
from outsize.metrics import ClassMetrics
from outsize.models import GraphModel
from outsize.ranks.collectives import rank, world_size
from outsize.training.build import build_device
from outsize.training.build_graph import build_graph_data, build_graph_model, require_labels
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics
from outsize.training.sampled_counts import expected_reads
from outsize.training.tasks.base import RankPart, Task


@dataclass(frozen=True)
class NodeBatch:
    """A batch of labelled nodes.

    Attributes:
        neighborhood: The nodes as seeds, with their neighbours.
        labels: `(B,)` classes, or `(B, C)` of 0 and 1.
        num_global: Number of nodes of this batch over all ranks.
    """

    neighborhood: Neighborhood
    labels: Tensor
    num_global: int

    def to(self, device: torch.device) -> NodeBatch:
        """The same on a device."""
        labels = self.labels.to(device, non_blocking=True)
        return replace(self, neighborhood=self.neighborhood.to(device), labels=labels)


class NodeTask(Task[NodeBatch]):
    """A graph model with its graph and the labels of nodes.

    Attributes:
        data: The graph.
        labels: The classes of nodes.
    """

    model: GraphModel
    higher_is_better = True

    def __init__(self, config: RunConfig) -> None:
        assert config.graph is not None
        self.device = build_device(config.train.device)
        self.data = build_graph_data(config)
        self.labels = require_labels(self.data)
        self.judge = "micro_f1" if self.labels.is_multi_label else "accuracy"
        self._nodes = {split: self._labelled(split) for split in SPLITS}
        num_classes = len(self.labels.class_names)
        self.num_train = len(self._nodes["train"])
        kinds = [self.labels.node_type]
        model = build_graph_model(config, self.data.graph, kinds, num_classes, self.num_train)
        self.model = model.to(self.device)
        self.fingerprint = self.data.fingerprint
        self._wanted = config.graph
        self._fan_out = config.graph.fan_out
        seed = derive_seed(config.seed, "neighbors")
        self._sampler = NeighborSampler(self.data.graph, self._fan_out, seed)
        # One window over all blocks: which nodes are labelled is in memory.
        window = max(1, -(-self.num_train // BLOCK_ROWS))
        self._order = BlockShuffle(self.num_train, config.seed, window_blocks=window)
        self._train_as(config)
        self.model.train()

    def train_batches(
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[NodeBatch]:
        """Batches with sampled neighbours, made ahead in a thread."""
        part = part or RankPart.own()
        batch_size = self._rank_batch_size * part.num_ranks
        places = rank_parts(self.num_train, batch_size, start, part.rank, part.num_ranks)
        first = epoch * self.num_batches(part.num_ranks) + start

        def make(numbered: tuple[int, tuple[int, int, int]]) -> NodeBatch:
            number, (low, high, size) = numbered
            nodes = self._nodes["train"][self._order.rows(low, high, epoch)]
            return self._batch(nodes, size, number)

        return prefetch(iter(enumerate(places, first)), make)

    def loss(self, batch: NodeBatch) -> Tensor:  # noqa: D102
        with self.autocast():
            logits: Tensor = self._forward(batch.neighborhood)
        logits = logits.float()
        if self.labels.is_multi_label:
            total = F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
            total = total / logits.shape[1]
        else:
            total = F.cross_entropy(logits, batch.labels, reduction="sum")
        return total * (world_size() / batch.num_global)

    def count_ids(self) -> dict[str, Tensor]:
        """How often training reads each id of each table in an epoch, on average."""
        kind = self.labels.node_type
        num_nodes = self.data.graph.nodes[kind].num_nodes
        seeds = {kind: np.bincount(self._nodes["train"], minlength=num_nodes)}
        counts = expected_reads(self.data.graph, seeds, self._fan_out)
        return {feature.table: counts[feature.name] for feature in self.embeddings.features}

    @torch.no_grad()
    def evaluate(self, split: Split) -> Metrics:
        """Loss, accuracy or micro-F1, and macro-F1; with the best accuracy where it is known."""
        self.model.eval()
        nodes, hop = self._nodes[split], [self._wanted.eval_fan_out]
        sampler = NeighborSampler(self.data.graph, hop, self._sampler.seed)
        with self.autocast():
            logits = self.model.encode_all(sampler, self.labels.node_type, nodes).float()
        metrics = ClassMetrics(len(self.labels.class_names), multi_label=self.labels.is_multi_label)
        own = slice(rank(), None, world_size())
        metrics.add(logits[own], self._labels_at(nodes[own]))
        self.model.train()
        self.raise_if_flawed()
        found = metrics.gather().result()
        if self.labels.best_accuracy is not None:
            found["bayes_accuracy"] = self.labels.best_accuracy
        return found

    def _batch(self, nodes: NDArray[np.int64], size: int, number: int) -> NodeBatch:
        neighborhood = self._sampler.sample(nodes, self.labels.node_type, number)
        neighborhood = replace(neighborhood, number=number)
        return NodeBatch(neighborhood, self._labels_at(nodes), size).to(self.device)

    def _labels_at(self, nodes: NDArray[np.int64]) -> Tensor:
        found = np.asarray(self.labels.classes[nodes])
        kind = np.float32 if self.labels.is_multi_label else np.int64
        return torch.from_numpy(found.astype(kind))

    def _labelled(self, split: Split) -> NDArray[np.int64]:
        nodes: Any = np.asarray(self.data.labelled.get(split, ()), np.int64)
        if not self.labels.is_multi_label:
            nodes = nodes[self.labels.classes[nodes] >= 0]
        if not len(nodes):
            raise DataError(
                f"the {split} split has no labelled node: look at the split and the labels"
            )
        return np.array(nodes)
