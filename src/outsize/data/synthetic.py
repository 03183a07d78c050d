"""A synthetic click log, generated on the fly, with a known best loss.

Every example is a pure function of the seed and its number: nothing is stored, any batch can be
generated at any time, and the log is the same for all ranks and batch sizes.

An example is generated as follows:

- *dense* features are standard normal.
- *ids*: a feature's rank is drawn from a Zipf distribution and mapped to an id by a bijection, so
  popular ids are scattered over the table. With `drift`, new ids enter as the most popular ones and
  become less popular over time.
- *clusters*: each id belongs to one of `num_clusters` planted clusters of its feature and has the
  cluster's latent vector, plus an individual part of relative size `individuality`.
- *label*: the logit is a bias, a linear term in the dense features, one in the ids, and the inner
  products between the latent vectors of all pairs of features (what DLRM's interaction can
  represent). The label is 1 with probability sigmoid(logit), which is part of the batch: the loss
  of predicting it is the best that any model can reach (Bayes).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from outsize.bounds import require_at_least, require_between
from outsize.data.click_data import ClickBatch, ClickData, ClickDataConfig, Split
from outsize.data.packed_clicks import ClickLayout
from outsize.data.zipf import Zipf
from outsize.errors import ConfigError
from outsize.hashing import derive_seed, mix_bits, normal_at, uniform_at
from outsize.kernels.available import uses_triton
from outsize.kernels.clicks.click_law import EFFECTS, ClickLaw

_CALIBRATION_EXAMPLES = 1 << 14
_LATENT_DIM = EFFECTS - 1
_EXAMPLES_PER_CHUNK = {"cpu": 1 << 12, "cuda": 1 << 17}
_MAX_IDS = 1 << 31  # rank × stride must fit an int64
_MAX_TRAINED, _MAX_HELD_OUT = 10**12, 10**9
_MAX_FEATURES = 1 << 16
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class SyntheticConfig(ClickDataConfig):
    """A synthetic click log.

    Attributes:
        num_train: Training examples per epoch.
        num_validation: Validation examples.
        num_test: Test examples.
        num_dense: Numeric features.
        vocabulary: Number of ids of each categorical feature. When empty, `num_categorical`
            features of sizes spaced evenly in the logarithm from 10 to `largest_vocabulary`.
        num_categorical: See `vocabulary`.
        largest_vocabulary: See `vocabulary`.
        skew: Zipf exponent of the ids; 0 is uniform, 1.05 is typical of click logs.
        num_clusters: Planted clusters per feature.
        interactions: Share, 0 to 1, of the logit's variance that comes from products of features;
            the rest is linear, half of it in the dense features and half in the ids.
        individuality: Share, 0 to 1, of an id's effect that is individual, not its cluster's.
        signal: Standard deviation of the logit, before its bias.
        click_rate: Mean of the labels.
        drift: Ids that newly become the most popular, per million examples and feature.
        seed: Seed of the log.
    """

    num_train: int = 2_000_000
    num_validation: int = 100_000
    num_test: int = 100_000
    num_dense: int = 13
    vocabulary: tuple[int, ...] = ()
    num_categorical: int = 26
    largest_vocabulary: int = 1_000_000
    skew: float = 1.05
    num_clusters: int = 64
    interactions: float = 0.2
    individuality: float = 0.1
    signal: float = 1.6
    click_rate: float = 0.25
    drift: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_between(self, 1, _MAX_TRAINED, "num_train")
        require_between(self, 1, _MAX_HELD_OUT, "num_validation", "num_test")
        require_between(self, 1, _MAX_FEATURES, "num_categorical")
        require_at_least(self, 1, "num_clusters", "largest_vocabulary")
        require_at_least(self, 0, "num_dense")
        require_between(self, 0, 100, "skew", "signal")
        require_between(self, 0, 1e6, "drift")
        require_between(self, 0, 1, "individuality", "interactions")
        if not 1 <= min(self.sizes()) <= max(self.sizes()) <= _MAX_IDS:
            raise ConfigError(
                f"vocabulary must hold sizes from 1 to {_MAX_IDS:,}, but got {self.sizes()}"
            )
        if not 0 < self.click_rate < 1:
            raise ConfigError(f"click_rate must be between 0 and 1, but got {self.click_rate}")

    def build(self) -> SyntheticClicks:  # noqa: D102
        return SyntheticClicks(self)

    def memory_needs(self) -> dict[str, int]:  # noqa: D102
        num_features = len(self.sizes())
        num_made = min(_CALIBRATION_EXAMPLES, self.num_train)
        return {
            f"data.num_clusters = {self.num_clusters:,} of {num_features:,} features":
                num_features * self.num_clusters * EFFECTS * 8,
            f"data.num_dense = {self.num_dense:,}": num_made * self.num_dense * 8,
            f"data.num_categorical = {num_features:,}":
                num_made * num_features * (8 + EFFECTS * 4),
        }  # fmt: skip

    def sizes(self) -> tuple[int, ...]:
        """Number of ids of each feature."""
        if self.vocabulary:
            return self.vocabulary
        low, high = math.log(min(10, self.largest_vocabulary)), math.log(self.largest_vocabulary)
        last = self.num_categorical - 1
        shares = [i / last for i in range(last)] + [1.0]
        return tuple(round(math.exp(low + (high - low) * share)) for share in shares)


class SyntheticClicks(ClickData):
    """The log described by a `SyntheticConfig`.

    Attributes:
        bias: The logit's bias, chosen so that the mean label is `click_rate`.
    """

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        sizes = config.sizes()
        self.num_dense = config.num_dense
        self.vocabularies = {f"c{i + 1}": size for i, size in enumerate(sizes)}
        self._sizes = torch.tensor(sizes)
        self._zipf = Zipf(sizes, config.skew)
        self._strides = torch.tensor([_stride(size) for size in sizes])
        self._columns = torch.arange(len(sizes))
        self._dense_columns = torch.arange(config.num_dense)
        self._seeds = {name: derive_seed(config.seed, name) for name in _DRAWS}
        self._dense_weight = normal_at(self._key("dense-weight", self._dense_columns))
        self._dense_weight /= max(1.0, math.sqrt(config.num_dense))
        numbers = torch.arange(len(sizes) * config.num_clusters * EFFECTS)
        self._cluster_effects = normal_at(self._key("cluster-effect", numbers))
        self._cluster_effects = self._cluster_effects.view(-1, EFFECTS)
        self.bias = 0.0
        self._scale = 1.0
        self._law: ClickLaw | None = None
        self._calibrate()

    def num_examples(self, split: Split) -> int:  # noqa: D102
        return int(getattr(self.config, f"num_{split}"))

    def to(self, device: torch.device) -> SyntheticClicks:
        """The same log, generated on a device.

        Values may differ from those of the CPU by rounding, and so may about one label in ten
        million.
        """
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor | Zipf):
                setattr(moved, name, value.to(device))
        moved._law = moved.law() if device.type == "cuda" else None
        return moved

    def law(self) -> ClickLaw:
        """The log as one kernel reads it."""
        config, zipf, num = self.config, self._zipf, len(self._sizes)
        seeds = [self._seeds[name] for name in ("dense", "id", "effect", "label")]
        seeds += [derive_seed(config.seed, "split", place) for place in range(len(_SPLITS))]
        numbers = [
            1 - config.skew,
            float(zipf.head[-1]),
            float(zipf.before_tail),
            config.drift * 1e-6,
            math.sqrt(1 - config.individuality),
            math.sqrt(12 * config.individuality),
            math.sqrt((1 - config.interactions) / 2),
            1 / math.sqrt(num),
            math.sqrt(config.interactions) / (2 * _norm_of_pairs(num)),
            self._scale,
            self.bias,
        ]
        device = self._sizes.device
        return ClickLaw(
            seeds=torch.tensor(seeds, device=device),
            dense_weight=self._dense_weight,
            sizes=self._sizes,
            strides=self._strides,
            totals=zipf.totals,
            head=zipf.head,
            effects=self._cluster_effects,
            numbers=torch.tensor(numbers, dtype=torch.float64, device=device),
            num_train=config.num_train,
            num_clusters=config.num_clusters,
            is_logarithmic=config.skew == 1.0,
            has_own=config.individuality > 0,
        )

    def examples(  # noqa: D102
        self, split: Split, first: int, stop: int, epoch: int = 0
    ) -> ClickBatch:
        return self._examples(split, torch.arange(first, stop, device=self._sizes.device))

    def batches(  # noqa: D102
        self,
        split: Split,
        batch_size: int,
        *,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[ClickBatch]:
        ahead = _EXAMPLES_PER_CHUNK[self._sizes.device.type] // batch_size
        if world_size > 1 or ahead <= 1:
            yield from super().batches(
                split, batch_size, epoch=epoch, start=start, rank=rank, world_size=world_size
            )
            return
        # Examples are cheaper in a large batch: generate several batches at once.
        total = self.num_examples(split)
        for first in range(start * batch_size, total, ahead * batch_size):
            made = self.examples(split, first, min(first + ahead * batch_size, total), epoch)
            whole = made.num_examples // batch_size * batch_size
            if made.labels.is_cuda and whole:
                layout = ClickLayout.of(made.slice(0, batch_size))
                assert layout is not None
                yield from layout.split(made.slice(0, whole))
            else:
                whole = 0
            for low in range(whole, made.num_examples, batch_size):
                yield made.slice(low, low + batch_size)

    def _examples(self, split: Split, numbers: Int64[Tensor, " batch"]) -> ClickBatch:
        offset = _SPLITS.index(split)
        if self._law is not None and uses_triton(numbers):
            from outsize.kernels.clicks.clicks_triton import clicks_by_triton

            made = clicks_by_triton(numbers, offset, self._law)
            named = dict(zip(self.vocabularies, made.ids.unbind(0), strict=True))
            return ClickBatch(made.dense, named, made.labels, made.probability)
        # Held-out examples follow the training examples in time.
        time = numbers + (self.config.num_train if offset else 0)
        keys = mix_bits(numbers + derive_seed(self.config.seed, "split", offset))
        dense = normal_at(self._key("dense", keys.unsqueeze(1) + self._dense_columns))
        ids = self._ids(keys, time)
        # In float64, then rounded: an example must not depend on the batch it is generated in.
        probability = torch.sigmoid(self._logit(dense, ids)).float()
        labels = (uniform_at(self._key("label", keys)) < probability).float()
        columns = ids.t().contiguous()
        named = {name: columns[i] for i, name in enumerate(self.vocabularies)}
        return ClickBatch(dense, named, labels, probability)

    def _ids(
        self, keys: Int64[Tensor, " batch"], time: Int64[Tensor, " batch"]
    ) -> Int64[Tensor, "batch features"]:
        uniform = uniform_at(self._key("id", keys.unsqueeze(1) + self._columns), torch.float64)
        entered = (time.double() * (self.config.drift * 1e-6)).long().unsqueeze(1)
        return ((self._zipf.ranks(uniform) - entered) * self._strides).remainder(self._sizes)

    def _logit(
        self, dense: Float[Tensor, "batch num_dense"], ids: Int64[Tensor, "batch features"]
    ) -> Float[Tensor, " batch"]:
        num = len(self._sizes)
        of_feature_and_id = ids * num + self._columns
        word = mix_bits(self._key("effect", of_feature_and_id))
        effects = self._effects(word).view(*ids.shape, EFFECTS)
        vectors, linear = effects[..., :-1], effects[..., -1].sum(dim=1)
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2
        pairs = pairs / _norm_of_pairs(num)
        from_dense = (dense * self._dense_weight).sum(dim=1)
        plain = from_dense.double() + linear.double() / math.sqrt(num)
        shares = (1 - self.config.interactions) / 2, self.config.interactions
        logit = plain * math.sqrt(shares[0]) + pairs.double() * math.sqrt(shares[1])
        return logit * self._scale + self.bias

    def _effects(self, word: Int64[Tensor, "batch features"]) -> Float[Tensor, "all effects"]:
        """The latent vectors and linear effects of ids, given 64 random bits per id.

        The bits select the cluster, and give the id's own effects, uniform with variance 1.
        """
        clusters = self.config.num_clusters
        own = self.config.individuality
        place = mix_bits(word).remainder(clusters)
        shared = self._cluster_effects.index_select(0, (place + self._columns * clusters).flatten())
        if own == 0:
            return shared
        shifts = torch.arange(EFFECTS, device=word.device) * 10
        bits = (word.flatten().unsqueeze(1) >> shifts) & 0x3FF
        uniform = (bits.to(torch.float32) + 0.5) * 2.0**-10 - 0.5
        return shared * math.sqrt(1 - own) + uniform * math.sqrt(12 * own)

    def _key(self, name: str, keys: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Keys for one use of the seed, so that no two uses share random numbers."""
        return keys ^ self._seeds[name]

    def _calibrate(self) -> None:
        """Choose scale and bias to match `signal` and `click_rate`."""
        count = min(_CALIBRATION_EXAMPLES, self.config.num_train)
        # Sampled over the whole training time, so that drift is averaged.
        numbers = torch.arange(count) * self.config.num_train // count
        batch = self._examples("train", numbers)
        assert batch.probability is not None
        logit = torch.logit(batch.probability.double(), eps=1e-12)
        spread = float(logit.std()) if count > 1 else 0.0
        self._scale = self.config.signal / spread if spread > 1e-6 else 0.0
        shape = (logit - logit.mean()) * self._scale
        low, high = -40.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            rate = float(torch.sigmoid(shape + middle).mean())
            low, high = (middle, high) if rate < self.config.click_rate else (low, middle)
        self.bias = (low + high) / 2 - float(logit.mean()) * self._scale


_DRAWS = ("dense", "dense-weight", "id", "effect", "cluster-effect", "label")


def _norm_of_pairs(num: int) -> float:
    """What the sum of products of pairs of features is divided by."""
    return math.sqrt(max(1.0, num * (num - 1) / 2 * _LATENT_DIM))


def _stride(size: int) -> int:
    """A multiplier prime to `size` near its golden section: rank × stride mod size is a bijection
    that scatters neighbours.
    """
    stride = max(1, round(size * 0.6180339887))
    while math.gcd(stride, size) != 1:
        stride += 1
    return stride
