"""Predicting links: retrieval where queries are the sources of edges, and items their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.data import Entities, GraphData, PairBatch, RetrievalData
from outsize.data.click_data import SPLITS, Split
from outsize.data.graphs.sampling import NeighborSampler
from outsize.errors import ConfigError
from outsize.hashing import derive_seed
from outsize.models import GraphModel
from outsize.training.build_graph import build_graph_data, build_graph_model
from outsize.training.config import RunConfig
from outsize.training.excluded_edges import relations_with_links_reversed, without_edges
from outsize.training.retrieval_evaluation import Encode
from outsize.training.sampled_counts import expected_reads
from outsize.training.tasks.base import RankPart
from outsize.training.tasks.retrieval import RetrievalTask


@dataclass(frozen=True)
class LinkBatch(PairBatch):
    """A batch of links.

    Attributes:
        number: Of the batch, counted over epochs.
        links: Sources and targets of the links of all ranks.
    """

    number: int
    links: tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]


class LinkTask(RetrievalTask):
    """A graph model with its graph and the links to predict.

    A node is encoded from a sampled neighbourhood, a new one in each step, without the links that
    the step predicts. Where items are encoded without gradients, to be cached, it is always the
    same one.

    Attributes:
        graph_data: The graph.
        data: Links as pairs. Those of an undirected relation are trained in both directions.
    """

    model: GraphModel  # type: ignore[assignment]
    finds_ids = False  # a neighbourhood may have ids of any block

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.fingerprint = self.graph_data.fingerprint

    def _build(self, config: RunConfig) -> RetrievalData:
        assert config.graph is not None
        self.graph_data = build_graph_data(config)
        name, links = _links_of(self.graph_data)
        self._graph = self.graph_data.graph
        self._source_type = self._graph.relations[name].source
        self._target_type = self._graph.relations[name].target
        self._relation = name
        self._reversed = relations_with_links_reversed(self._graph, name, links["train"])
        self._eval_fan_out = config.graph.eval_fan_out
        self._excludes = config.graph.exclude_links
        seed = derive_seed(config.seed, "neighbors")
        self._sampler = NeighborSampler(self._graph, config.graph.fan_out, seed)
        self._batch: LinkBatch | None = None
        if name in self._reversed:
            links["train"] = np.concatenate((links["train"], links["train"][::-1]), axis=1)
        kinds = list(dict.fromkeys((self._source_type, self._target_type)))
        num_train = links["train"].shape[1]
        model = build_graph_model(config, self._graph, kinds, None, num_train)
        self.model = model.to(self.device)
        return self._pairs(links, config.seed)

    def _pairs(self, links: Mapping[Split, NDArray[np.int64]], seed: int) -> RetrievalData:
        sizes = [self._graph.nodes[k].num_nodes for k in (self._source_type, self._target_type)]
        queries, items = (Entities(size, {}, {}) for size in sizes)
        pairs = {
            split: (torch.tensor(sources), torch.tensor(targets))
            for split, (sources, targets) in links.items()
        }
        return RetrievalData(queries, items, pairs, seed=seed)

    def train_batches(
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[LinkBatch]:
        """The pairs of a rank, with those of all ranks."""
        part = part or RankPart.own()
        first = epoch * self.num_batches(part.num_ranks) + start
        batch_size = self._rank_batch_size * part.num_ranks
        everyone = self.data.batches("train", batch_size, epoch=epoch, start=start)
        own = super().train_batches(epoch, start, part)
        for number, (batch, whole) in enumerate(zip(own, everyone, strict=True), first):
            links = whole.query_rows.cpu(), whole.items.cpu()
            parts = {field.name: getattr(batch, field.name) for field in fields(PairBatch)}
            yield LinkBatch(**parts, number=number, links=links)

    def loss(self, batch: PairBatch) -> Tensor:
        """The mean loss of the batch against its negatives."""
        assert isinstance(batch, LinkBatch)
        self._batch = batch
        return super().loss(batch)

    def count_ids(self) -> dict[str, Tensor]:
        """How often training reads each id of each table in an epoch, on average."""
        counts: dict[str, NDArray[np.int64]] = {}
        for kind, column in ((self._source_type, 0), (self._target_type, 1)):
            nodes = self.data.known("train").pairs()[column].cpu().numpy()
            found = np.bincount(nodes, minlength=self._graph.nodes[kind].num_nodes)
            counts[kind] = counts.get(kind, 0) + found
        reads = expected_reads(self._graph, counts, self._sampler.fan_out)
        return {feature.table: reads[feature.name] for feature in self.embeddings.features}

    @property
    def _item_encoder(self) -> Callable[..., Any]:
        return self.model

    def _query_features(self, batch: PairBatch) -> Mapping[str, Tensor]:
        return {"query": batch.query_rows}

    def _encode_query_features(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._encode_nodes(features["query"], self._source_type)

    def _encode_item_rows(self, features: Mapping[str, Tensor]) -> Tensor:
        return self._encode_nodes(features["item"], self._target_type)

    def _encode_nodes(self, nodes: Int64[Tensor, " n"], kind: str) -> Float[Tensor, "n dim"]:
        batch = self._batch if torch.is_grad_enabled() else None
        number = 0 if batch is None else batch.number
        neighborhood = self._sampler.sample(nodes.cpu().numpy(), kind, number)
        if batch is not None and self._excludes:
            sources, targets = batch.links
            excluded = {self._relation: [(sources, targets)]}
            for name in self._reversed:
                excluded.setdefault(name, []).append((targets, sources))
            joined = {
                name: (torch.cat([s for s, _ in pairs]), torch.cat([t for _, t in pairs]))
                for name, pairs in excluded.items()
            }
            neighborhood = without_edges(neighborhood, self._graph, joined)
        found: Tensor = self.model(neighborhood.to(self.device))
        return found

    @torch.no_grad()
    def _evaluated(self, split: Split) -> tuple[Encode, Tensor]:
        sampler = NeighborSampler(self._graph, [self._eval_fan_out], self._sampler.seed)
        with self.autocast():
            items = self.model.encode_all(sampler, self._target_type).float()
            if self._source_type == self._target_type:
                return items.__getitem__, items
            asked = self.data.relevant(split).counts().nonzero().flatten()
            found = self.model.encode_all(sampler, self._source_type, asked.cpu().numpy()).float()
        places = torch.full((self.data.queries.num_rows,), -1, device=self.device)
        places[asked] = torch.arange(len(asked), device=self.device)
        return lambda rows: found[places[rows]], items


def _links_of(data: GraphData) -> tuple[str, dict[Split, NDArray[np.int64]]]:
    if data.link_relation is None or any(split not in data.links for split in SPLITS):
        raise ConfigError(
            "graph.predict = 'links' needs edges that are held out, but the data has none: add "
            "[data.links]"
        )
    return data.link_relation, {split: np.asarray(data.links[split]) for split in SPLITS}
