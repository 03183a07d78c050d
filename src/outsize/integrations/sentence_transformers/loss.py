"""Softmax cross-entropy against a cache of texts, as a loss of sentence-transformers.

Such a loss gets tokenized columns: the anchors, their positives, and hard negatives. Drawn texts
are encoded again with the positives, with gradients, in one forward pass of the model.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor, nn

from outsize.errors import ConfigError, DataError
from outsize.integrations.sentence_transformers.batch_texts import (
    hard_negatives,
    label_keys,
    positives_of_equals,
    token_keys,
)
from outsize.integrations.sentence_transformers.cache_folder import (
    TextLayout,
    load_folder,
    save_folder,
    save_unused,
)
from outsize.integrations.sentence_transformers.corpus import Corpus, TextCorpus, warn_if_foreign
from outsize.integrations.sentence_transformers.encoders import (
    embed,
    embed_in_chunks,
    normalized,
    refuse_truncating_losses,
    unwrapped,
)
from outsize.integrations.sentence_transformers.reports import PendingReports, is_finite
from outsize.integrations.sentence_transformers.same_loss import require_same_loss
from outsize.integrations.sentence_transformers.settings import TextCacheSettings
from outsize.integrations.sentence_transformers.tokens import LENGTH, Column, as_column
from outsize.negatives import (
    CacheLossReport,
    Comparison,
    PositivesFeed,
    Temperature,
    Upkeep,
    load_cache,
)
from outsize.negatives import NegativeCacheLoss as CacheLoss
from outsize.negatives.cache.contract import ItemCache
from outsize.ranks.collectives import any_rank, world_size

_numbers = itertools.count()


class NegativeCacheLoss(nn.Module):
    """Cross-entropy of each positive against a cache of texts, and the batch.

    The columns are anchor, positive and any number of hard negatives. The value is the exact
    cross-entropy over the cache, the batch and the hard negatives; the gradient is an estimate from
    `num_negatives` drawn texts per anchor (see `outsize.negatives.estimators`). A text is never a
    negative of its own anchor, nor of another anchor of the batch with the same tokens.

    With a Trainer, pass `callbacks=[loss.callback()]`: it commits after each optimizer step, and
    saves and restores the cache with the Trainer's checkpoints. In a loop of your own, call
    `commit()` after the optimizer's step. The cache changes only there. An evaluation changes
    nothing. With several ranks, all share one cache.

    Args:
        model: A `SentenceTransformer`, or any module from tokenized texts to a dictionary with
            "sentence_embedding".
        corpus: All texts that may be positives or negatives, or texts by id. They are encoded
            before the first step. Without it, the cache holds the most recent positives.
        scale: The inverse temperature β, or a `Temperature`, which may be learned.
        num_negatives: Texts drawn per anchor.
        in_batch: Join the positives of the other anchors, of all ranks.
        symmetric: Average with the loss of each positive against the anchors of the batch.
        estimator: A key of `outsize.negatives.ESTIMATORS`.
        settings: Capacity, refreshing and storage of the cache.

    Attributes:
        is_loaded: Whether `load` was called. Set it for a Trainer that resumes without the cache of
            its checkpoint, to fill a cache anew.

    Example:
        >>> loss = NegativeCacheLoss(model, corpus=documents)  # doctest: +SKIP
        >>> trainer = SentenceTransformerTrainer(  # doctest: +SKIP
        ...     model, train_dataset=pairs, loss=loss, callbacks=[loss.callback()]
        ... )
    """

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus | None = None,
        scale: float | Temperature = 20.0,
        num_negatives: int = 4,
        in_batch: bool = True,
        symmetric: bool = False,
        estimator: str = "shared-systematic",
        settings: TextCacheSettings | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = scale if isinstance(scale, Temperature) else Temperature(scale)
        self.settings = settings or TextCacheSettings()
        if num_negatives < 1:
            raise ConfigError(f"num_negatives must be >= 1, but got {num_negatives}")
        self.num_negatives = num_negatives
        self.comparison = Comparison(estimator, in_batch, symmetric)
        by_id = self.settings.keys == "label"
        self._corpus: TextCorpus | None = None
        if corpus is not None:
            self._corpus = TextCorpus(corpus, by_id, self.settings.corpus_prompt)
        # In a tuple, so that it is not a submodule: the Trainer and DDP would treat it as weights.
        self._loss: tuple[CacheLoss, ...] = ()
        self.is_loaded = False
        self._layout: TextLayout | None = None
        self._shared: Mapping[str, Any] | None = None
        self._pending = PendingReports()
        self._metrics: Mapping[str, Tensor] = {}
        self._num_skipped = 0
        self._autocast: tuple[bool, torch.dtype] | None = None
        self._number = next(_numbers)

    def forward(
        self, sentence_features: Iterable[Mapping[str, Any]], labels: Tensor | None = None
    ) -> Float32[Tensor, ""]:
        """The loss of a batch.

        Args:
            sentence_features: Tokenized columns: anchors, positives, hard negatives.
            labels: With `keys="label"`, the ids of the positives `(n,)`, or of the positives and
                hard negatives `(n, 1 + number of hard negatives)`. Unused otherwise.
        """
        given = [dict(features) for features in sentence_features]
        if len(given) < 2:
            raise DataError(f"NegativeCacheLoss needs anchors and positives, but got {len(given)}")
        refuse_truncating_losses(self.model)
        anchors, positives, *hard = columns = [as_column(features) for features in given]
        kind = anchors.lengths.device.type
        self._autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        try:
            queries = normalized(self.model(given[0])["sentence_embedding"])
            with torch.autocast(kind, enabled=False):
                require_same_loss(self._number, queries.device)
                by_label = self.settings.keys == "label"
                items = columns[1:]
                keys = label_keys(items, labels) if by_label else token_keys(items)
                loss = self._ready(positives, keys[:, 0], queries)
                features = [self._features(column) for column in hard]
                report: CacheLossReport = loss(
                    queries,
                    self._features(positives),
                    keys[:, 0],
                    positives_of_equals(anchors.keys(), keys[:, 0]),
                    hard_negatives(features, keys[:, 1:]) if hard else None,
                )
        finally:
            self._autocast = None
        self._metrics = report.metrics
        if torch.is_grad_enabled() and unwrapped(self.model).training:
            self._pending.add(report, self.model)
        return report.loss

    def commit(self) -> None:
        """Write back what the last optimizer step encoded, add new texts, refresh the oldest.

        Call it after the optimizer's step, on all ranks. Batches whose embeddings are not finite,
        as in a step that a gradient scaler skips, are dropped.
        """
        report = self._pending.take()
        if report is None:
            return
        if any_rank(not is_finite(report), self.cache.device):
            self._num_skipped += 1
            return
        self._loss[0].commit(report)

    def callback(self, folder: str = "negative_cache") -> Any:
        """The callback for a Trainer; `folder` is where the cache is within its checkpoints."""
        from outsize.integrations.sentence_transformers.callback import NegativeCacheCallback

        return NegativeCacheCallback(self, folder)

    @property
    def cache(self) -> ItemCache:
        """The cache; there is none before the first batch."""
        if not self._loss:
            raise ConfigError(
                "the cache is built by the first batch, or by load: there is none yet"
            )
        return self._loss[0].cache

    def metrics(self) -> dict[str, float]:
        """Values to log: those of the last batch, and of the cache after the last commit."""
        if not self._loss:
            return {}
        found = {name: float(value) for name, value in self._metrics.items()}
        return found | self._loss[0].latest_metrics() | {"skipped": float(self._num_skipped)}

    def save(self, folder: str | Path) -> None:
        """Save the cache and β into a folder, which is complete or absent. All ranks call it.

        A loss that has had no batch yet, as that of a data set whose turn has not come, saves that
        it has none.
        """
        if self._layout is None:
            save_unused(Path(folder))
            return
        log_beta = float(self.temperature.log_beta.detach())
        corpus = "" if self._corpus is None else self._corpus.fingerprint
        layout = replace(self._layout, log_beta=log_beta, corpus=corpus)
        save_folder(Path(folder), self.cache, layout)

    def load(self, folder: str | Path) -> None:
        """Continue with a saved cache, and a learned β. All ranks call it."""
        layout = load_folder(Path(folder))
        if layout is None:
            self.is_loaded = True
            return
        if layout.num_texts != self._num_texts():
            raise ConfigError(
                f"{folder} holds a corpus of {layout.num_texts:,} texts, but "
                f"{self._num_texts():,} are given: give the same, or train without resuming"
            )
        if self._corpus is not None and layout.corpus not in ("", self._corpus.fingerprint):
            raise ConfigError(
                f"{folder} holds another corpus of {layout.num_texts:,} texts than is given: give "
                "the same, or train without resuming"
            )
        device = next(self.model.parameters()).device
        self._build(layout, device)
        load_cache(self.cache, Path(folder))
        for learned in self.temperature.parameters():
            learned.detach().fill_(layout.log_beta)
        self._pending.take()
        self._shared = None
        self.is_loaded = True

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {
            "scale": float(self.temperature().detach()),
            "num_negatives": self.num_negatives,
            "in_batch": self.comparison.in_batch,
            "symmetric": self.comparison.symmetric,
            "estimator": self.comparison.estimator,
            "corpus": self._num_texts(),
            **vars(self.settings),
        }

    def _ready(self, positives: Column, keys: Int64[Tensor, " n"], queries: Tensor) -> CacheLoss:
        """The loss over the cache; builds and fills it for the first batch."""
        if self._shared is None:
            if self._layout is not None and self._layout.shared != _as_text(positives.shared):
                raise ConfigError(
                    f"the saved cache holds texts with {self._layout.shared}, but positives have "
                    f"{_as_text(positives.shared)}: use the prompt it was made with"
                )
            self._shared = positives.shared
            if self._corpus is not None:
                task = positives.shared.get("task")
                self._corpus.connect(self.model, self._features, self._encode, task)
        if not self._loss:
            names = sorted(positives.tokens)
            shared, num_texts = _as_text(positives.shared), self._num_texts()
            layout = TextLayout(queries.shape[1], self._width(), names, shared, num_texts)
            self._build(layout, queries.device)
            try:
                self._loss[0].begin()
            except BaseException:
                self._loss, self._layout, self._shared = (), None, None
                raise
            if self._corpus is not None and self.cache.num_held:  # not so during a warm-up
                warn_if_foreign(self.cache, keys)
        return self._loss[0]

    def _build(self, layout: TextLayout, device: torch.device) -> None:
        settings = self.settings
        if world_size() > 1 and any(p.requires_grad for p in self.temperature.parameters()):
            raise ConfigError("a learned scale is not averaged over ranks: give a number")
        cache = layout.build_cache(settings).to(device)
        refresh = min(1.0, settings.num_refreshed / cache.num_items)
        upkeep = Upkeep(self._corpus or PositivesFeed(), refresh, settings.warmup_steps)
        self._layout = layout
        self._loss = (
            CacheLoss(
                cache, self._encode, self.temperature, self.num_negatives, self.comparison, upkeep
            ),
        )

    def _encode(self, features: Mapping[str, Tensor]) -> Float[Tensor, "n dim"]:
        """Encode texts of the cache: with gradients in one pass, without them in chunks."""
        kind = features[LENGTH].device.type
        enabled, dtype = self._autocast or (
            torch.is_autocast_enabled(kind),
            torch.get_autocast_dtype(kind),
        )
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            if torch.is_grad_enabled():
                return embed(self.model, features, self._shared or {})
            assert self._layout is not None
            size, dim = self.settings.chunk_size, self._layout.dim
            return embed_in_chunks(self.model, features, self._shared or {}, size, dim)

    def _features(self, column: Column) -> dict[str, Tensor]:
        """The features of a column that the cache holds."""
        assert self._layout is not None
        if column.shared != self._shared:
            raise DataError(
                f"all texts but the anchors must have one prompt and task, but positives have "
                f"{_as_text(self._shared)} and others {_as_text(column.shared)}: give the columns "
                "and corpus_prompt the same prompt"
            )
        if sorted(column.tokens) != self._layout.names:
            raise DataError(
                f"the cache holds {self._layout.names}, but a column has {sorted(column.tokens)}"
            )
        return column.features(self._layout.width)

    def _width(self) -> int:
        width = self.settings.max_tokens or getattr(unwrapped(self.model), "max_seq_length", None)
        if width is None:
            raise ConfigError("the model has no max_seq_length: set max_tokens")
        return int(width)

    def _num_texts(self) -> int:
        """Texts of the corpus; 0 without one."""
        return 0 if self._corpus is None else len(self._corpus)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NegativeCacheLoss:
        """Move the cache too."""
        super()._apply(fn, recurse)
        for loss in self._loss:
            loss.cache._apply(fn, recurse)
        return self


def _as_text(shared: Mapping[str, Any] | None) -> str:
    return json.dumps(dict(shared or {}), sort_keys=True, default=str)
