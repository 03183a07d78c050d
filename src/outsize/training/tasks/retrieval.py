"""Retrieval: a softmax over a corpus of items, or over the negatives that stand for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outsize.data import PairBatch, RetrievalData
from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.encoding_progress import say
from outsize.data.item_lists import ItemLists
from outsize.errors import CheckpointError, ConfigError, DataError
from outsize.hashing import derive_seed
from outsize.models import RetrievalModel
from outsize.negatives import (
    ItemCache,
    ItemSource,
    LossReport,
    NegativesLoss,
    in_chunks,
    load_cache,
    write_cache,
)
from outsize.negatives.evaluation_mode import evaluation_mode
from outsize.rank_files import rank_file, read_tensors, verified_rank_file, write_rank_file
from outsize.ranks.collectives import gather_values, rank, world_size
from outsize.ranks.failures import failing_together
from outsize.spec import MemoryUse
from outsize.tables import ProbeBlock
from outsize.training.build import build_device, build_retrieval_data, build_retrieval_model
from outsize.training.config import RunConfig
from outsize.training.metric_names import Metrics
from outsize.training.probed_examples import touching
from outsize.training.random_state import load_own_generators, own_generators
from outsize.training.retrieval_evaluation import (
    QUERIES_PER_CHUNK,
    Encode,
    encode_corpus,
    items_at_once,
    rank_relevant,
)
from outsize.training.saved_state import fitting, require_weights
from outsize.training.tasks.base import RankPart, Task
from outsize.verified_folders import read_manifest

_PROBED_QUERIES = 1_000


class RetrievalTask(Task[PairBatch]):
    """A retrieval model with its pairs, and what its queries are trained against.

    Attributes:
        data: The pairs.
        negatives: What queries are trained against.
    """

    model: RetrievalModel
    finds_ids = True

    def __init__(self, config: RunConfig) -> None:
        assert config.negatives is not None
        assert config.retrieval is not None
        self.device = build_device(config.train.device)
        self.data = self._build(config).to(self.device)
        self.num_train = self.data.num_pairs("train")
        self.fingerprint = self.data.fingerprint
        self.judge = config.retrieval.judge
        self.higher_is_better = self.judge != "loss"
        self._wanted = config.retrieval
        self._num_at_once = items_at_once(config, self.data.items.num_rows)
        most = min(QUERIES_PER_CHUNK, self._num_at_once)
        self._eval_queries = min(config.train.eval_batch_size, most)
        self._require_possible(config)
        chunk_size = config.negatives.chunk_size
        self._encode_queries = in_chunks(self._encode_query_features, chunk_size)
        self._encode_items = in_chunks(self._encode_item_rows, chunk_size)
        source = ItemSource(
            num_items=self.data.items.num_rows,
            dim=self.model.dim,
            features_of=lambda rows: {"item": rows},
            encode=self._encode,
            counts=self.data.item_counts,
            num_at_once=self._num_at_once,
        )
        seed = derive_seed(config.seed, "negatives", rank())
        self.negatives: NegativesLoss = config.negatives.build(source, seed).to(self.device)
        self._trained = _Trained(self.model, self.negatives, self._encode_items)
        self._train_as(config)
        self._report: LossReport | None = None
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self.model.train()
        if rank() > 0:
            # Encoders may drop out at random, and ranks must not do so alike.
            torch.manual_seed(derive_seed(config.seed, "rank", rank()))

    def _build(self, config: RunConfig) -> RetrievalData:
        """Make the data, and `self.model` on its device."""
        data = build_retrieval_data(config)
        for note in data.notes if rank() == 0 else ():
            say(note)
        self.model = build_retrieval_model(config, data).to(self.device)
        return data

    @property
    def trained(self) -> nn.Module:
        """The model, and the temperature where it is learned."""
        return self._trained

    def train_batches(  # noqa: D102
        self, epoch: int, start: int, part: RankPart | None = None
    ) -> Iterator[PairBatch]:
        part = part or RankPart.own()
        return self.data.batches(
            "train",
            self._rank_batch_size * part.num_ranks,
            epoch=epoch,
            start=start,
            rank=part.rank,
            world_size=part.num_ranks,
        )

    def loss(self, batch: PairBatch) -> Tensor:
        """The mean loss of the batch against its negatives."""
        share = batch.items.shape[0] * world_size() / batch.num_global
        if not batch.items.shape[0]:
            batch = self._stand_in(batch)
        with self.autocast():
            queries = self._encode_queries(self._query_features(batch))
        known = None
        if self._wanted.max_known != 0:
            known = self.data.known_items(batch.query_rows, self._wanted.max_known)
        report: LossReport = self.negatives(queries, {"item": batch.items}, batch.items, known)
        for name, value in report.metrics.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + value.detach().double()
            self._counts[name] = self._counts.get(name, 0) + 1
        self._report = report
        return report.loss * share

    def begin(self) -> None:
        """Let the negatives fill their cache."""
        self.negatives.begin()

    def commit(self) -> None:
        """Write back what the step has encoded."""
        if self._report is not None:
            report, self._report = self._report, None
            self.negatives.commit(report)

    def finish_commit(self) -> None:
        """Refresh the items that were due when a commit was stopped."""
        self.negatives.refresh()

    def take_sums(self) -> dict[str, tuple[float, int]]:  # noqa: D102
        taken = {name: (float(total), self._counts[name]) for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return taken

    def train_metrics(self) -> dict[str, float]:
        """Metrics of the negatives, averaged over ranks."""
        known = gather_values(self.negatives.latest_metrics())
        names = dict.fromkeys(name for metrics in known for name in metrics)
        found = {name: [metrics[name] for metrics in known if name in metrics] for name in names}
        return {name: sum(values) / len(values) for name, values in found.items()}

    def evaluate(self, split: Split, most_queries: int | None = None) -> Metrics:
        """Rankings of all items for every query of a split, and the loss over all items.

        If a stop is requested, it raises `StopRequested` between chunks.

        Args:
            split: The part of the data.
            most_queries: Take the first queries alone; by default all.
        """
        relevant = self.data.relevant(split)
        if most_queries is not None:
            relevant = relevant.first(most_queries)
        return self._evaluate(split, relevant, self.data.grades(split))

    def probe_batches(self, step: int, block: ProbeBlock, share: float) -> Iterator[PairBatch]:
        """As of every task; negatives are drawn for each batch, though no step is committed."""
        for batch in super().probe_batches(step, block, share):
            yield batch
            self.negatives.draw_anew()

    def probed_loss(self, block: ProbeBlock) -> float:
        """As of every task, over at most 1,000 queries, equally spaced: each reads all items."""
        relevant = self.data.relevant("validation").spread(_PROBED_QUERIES)
        loss = self._evaluate("validation", relevant, None)["loss"]
        self.model.eval()  # an evaluation ends in training mode
        return math.nan if loss is None else loss

    def _evaluate(self, split: Split, relevant: ItemLists, grades: Tensor | None) -> Metrics:
        self.model.eval()
        encode, items = self._evaluated(split)
        with torch.no_grad():
            beta = self.negatives.temperature()
        metrics = self._wanted.metrics(str(self.device), self.data.min_grade(split))
        found = rank_relevant(
            relevant, self.data.known(split), encode, items, beta, metrics,
            self._eval_queries, grades=grades,
        )  # fmt: skip
        self.model.train()
        self.raise_if_flawed()
        return found

    def _examples(self, split: Split, low: int, high: int, epoch: int) -> PairBatch:
        return self.data.pairs(split, low, high, epoch)

    def _touching(self, batch: PairBatch, block: ProbeBlock) -> Tensor:
        """The pairs with an id of the block, of the query or of the item."""
        values = {**self.data.items.take(batch.items), **batch.queries}
        read = [(f.table, values[f.name]) for f in self.embeddings.features if f.name in values]
        return touching(read, block)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """As for every task; draws of negatives are not counted either."""
        before = (self._report, dict(self._sums), dict(self._counts))
        plain = nn.Module.get_extra_state
        parts = self.negatives.modules()
        counting = [part for part in parts if type(part).get_extra_state is not plain]
        counters = [part.get_extra_state() for part in counting]
        try:
            with super().frozen():
                yield
        finally:
            self._report, self._sums, self._counts = before
            for part, counts in zip(counting, counters, strict=True):
                part.set_extra_state(counts)

    def count_ids(self) -> dict[str, Tensor]:
        """How often each id of each table occurs in training."""
        return self.data.count_ids()

    def extra_memory(self) -> dict[str, MemoryUse]:
        """The negative cache, if there is one."""
        return {} if self._cache is None else {"negative cache": self._cache.memory_use()}

    def write_files(self, folder: Path) -> Mapping[str, Mapping[str, Any]]:
        """Write this rank's negatives, and the states of its generators."""
        state = self._state_but_cache() | own_generators()
        files = write_rank_file(folder, _own_file(), state)
        if self._cache is not None:
            files |= write_cache(self._cache, folder)
        return files

    def load_files(self, folder: Path) -> None:
        """Load this rank's negatives; on another number of ranks, the shared cache only."""
        name = _own_file()
        with failing_together(CheckpointError):
            files = read_manifest(folder)
            if name in files:
                state = read_tensors(verified_rank_file(folder, name, files))
                load_own_generators(state)
                with fitting(folder):
                    require_weights(state, self._state_but_cache())
                self.negatives.load_state_dict(state, strict=False)  # the cache has its own file
        if self._cache is not None:
            load_cache(self._cache, folder)

    @property
    def _cache(self) -> ItemCache | None:
        caches = (part for part in self.negatives.modules() if isinstance(part, ItemCache))
        return next(caches, None)

    def _state_but_cache(self) -> dict[str, Tensor]:
        names = [f"{n}." for n, part in self.negatives.named_modules() if part is self._cache]
        state = self.negatives.state_dict()
        return {name: value for name, value in state.items() if not name.startswith(tuple(names))}

    def _encode(self, features: Mapping[str, Tensor]) -> Tensor:
        """Encode items: with gradients through DDP, without them in evaluation mode."""
        with self.autocast():
            if torch.is_grad_enabled():
                encoded: Tensor = self._forward(features)
                return encoded
            with evaluation_mode(self._item_encoder):
                return self._encode_items(features)

    @property
    def _item_encoder(self) -> Callable[..., Any]:
        """What encodes items, to be switched to evaluation mode."""
        return self.model.encode_items

    def _query_features(self, batch: PairBatch) -> Mapping[str, Tensor]:
        return batch.queries

    def _encode_query_features(self, features: Mapping[str, Tensor]) -> Tensor:
        return self.model.encode_queries(features)

    def _encode_item_rows(self, features: Mapping[str, Tensor]) -> Tensor:
        return self.model.encode_items(self.data.items.take(features["item"]))

    def _evaluated(self, split: Split) -> tuple[Encode, Tensor]:
        """How queries of a split are encoded, and all items, encoded."""

        def encode(rows: Tensor) -> Tensor:
            with self.autocast():
                return self.model.encode_queries(self.data.queries.take(rows))

        items = encode_corpus(
            lambda rows: self._encode({"item": rows}),
            self.data.items.num_rows,
            self._num_at_once,
            self.device,
        )
        return encode, items

    def _stand_in(self, batch: PairBatch) -> PairBatch:
        """A training pair with weight 0, for a rank that has none in the last batch.

        Every step is collective. If batches are joined over ranks, its item is a negative, too.
        """
        pair = next(self.data.batches("train", 1))
        return replace(pair, num_global=batch.num_global)

    def _require_possible(self, config: RunConfig) -> None:
        for split in SPLITS[1:]:
            if not self.data.relevant(split).values.shape[0]:
                raise DataError(
                    f"no query can be evaluated: every {split} pair is known from training, or of "
                    "a query without training pairs; look at the split"
                )
        assert config.negatives is not None
        if config.negatives.chunk_size and config.embeddings.is_shared and world_size() > 1:
            raise ConfigError(
                "negatives.chunk_size reads rows chunk by chunk, and ranks that share rows must "
                "read together: leave it out, or set embeddings.store = 'local'"
            )


class _Trained(nn.Module):
    """Everything that is optimized, averaged over ranks by DDP and saved together."""

    def __init__(self, model: nn.Module, negatives: NegativesLoss, encode: Any) -> None:
        super().__init__()
        self.model = model
        self.negatives = nn.ParameterList(negatives.parameters())
        self._encode = encode

    def forward(self, features: Mapping[str, Tensor]) -> Tensor:
        """Encode items. DDP averages gradients of one forward per step: this one."""
        encoded: Tensor = self._encode(features)
        return encoded


def _own_file() -> str:
    return rank_file("negatives", rank(), world_size())
