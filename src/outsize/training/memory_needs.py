"""What a run will hold in memory, estimated before anything of it is allocated.

Each part counts what it cannot do without, so that a run that fits is never refused; one that is
refused could not have run. What is left to chance (temporary tensors, fragments) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn

from outsize.collection import EmbeddingCollection
from outsize.errors import NotEnoughMemoryError, OutsizeError
from outsize.models import ClickModelConfig, GraphModel, RetrievalModel
from outsize.ranks.failures import failing_together
from outsize.reporting.quantities import format_bytes
from outsize.spec import FeatureSpec, TableSpec
from outsize.training.available_memory import available_bytes
from outsize.training.config import RunConfig

Needs = Mapping[str, int]
_FLOAT, _ID = 4, 8
_TOO_LARGE = (  # what torch says of a size that no tensor can have
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "Overflow when unpacking long",
)
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", *_TOO_LARGE)


def require_memory(needs: Needs, device: torch.device | None = None) -> None:
    """Refuse parts that need more memory together than there is; entered by all ranks.

    Args:
        needs: What each part is, beginning with its key in the run file, and its bytes; parts
            come before those that follow from them.
        device: Where the parts end up, once they are made in main memory.
    """
    with failing_together(NotEnoughMemoryError):
        _require_within(available_bytes(), needs, "")
        if device is not None and device.type == "cuda":
            _require_within(torch.cuda.mem_get_info(device)[0], needs, f" on {device}")


def _require_within(limit: int | None, needs: Needs, where: str) -> None:
    total = sum(needs.values())
    if limit is None or total <= limit:
        return
    # The first that is too large by itself: the later ones may be so because of it.
    largest = max(needs, key=lambda name: needs[name])
    named = next((name for name, size in needs.items() if size > limit), largest)
    others = total - needs[named]
    rest = f" (and all else {format_bytes(others)})" if others else ""
    raise NotEnoughMemoryError(
        f"{named} needs {format_bytes(needs[named])} of memory{rest}, but {format_bytes(limit)} "
        f"are available{where}: lower it, or use a machine with more"
    )


@contextmanager
def refusing_what_memory_cannot_hold() -> Iterator[None]:
    """Turn an allocation that fails in spite of the estimate into a `NotEnoughMemoryError`."""
    try:
        yield
    except OutsizeError:
        raise
    except (MemoryError, RuntimeError) as error:
        fact = str(error).strip().partition("\n")[0]
        is_about_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_about_memory and not any(words in fact for words in _OUT_OF_MEMORY):
            raise
        raise NotEnoughMemoryError(
            f"this run needs more memory than there is ({fact or 'MemoryError'}): lower "
            "train.batch_size, embeddings.dim or the model's widths, or use a machine with more"
        ) from error


def embedding_needs(config: RunConfig, specs: Iterable[TableSpec]) -> dict[str, int]:
    """Bytes of the embeddings of a rank, with the state of their optimizer."""
    wanted, specs = config.embeddings, list(specs)
    num_rows = sum(spec.num_rows for spec in specs)
    name = f"embeddings.dim = {wanted.dim:,} for {num_rows:,} ids in {len(specs):,} tables"
    return {name: wanted.num_bytes(specs, state_numbers(config))}


def click_model_needs(
    config: RunConfig, num_dense: int, embeddings: EmbeddingShapes, num_examples: tuple[int, int]
) -> dict[str, int]:
    """What the dense weights of a click model and its batches take on a rank.

    Args:
        config: The run.
        num_dense: Width of the dense features.
        embeddings: The embeddings that it reads.
        num_examples: Of training, and of the larger of the other two splits: they bound batches.
    """
    wanted = config.model
    assert isinstance(wanted, ClickModelConfig)
    model = _model_shape(lambda: wanted.build(num_dense, embeddings, config.seed))
    num_features, dim = len(embeddings.features), config.embeddings.dim
    numbers = num_dense + num_features * dim + model.num_outputs
    per_example = numbers * _FLOAT + num_features * _ID
    # In training, every number has a gradient.
    trained = min(config.train.batch_size, num_examples[0]) * (per_example + numbers * _FLOAT)
    evaluated = min(config.train.eval_batch_size, num_examples[1]) * per_example
    larger = "batch_size" if trained >= evaluated else "eval_batch_size"
    return {
        f"[model] with embeddings.dim = {dim:,} and {num_dense + num_features:,} features":
            model.num_weights * _FLOAT * (2 + state_numbers(config)),
        f"train.{larger} = {getattr(config.train, larger):,}": max(trained, evaluated),
    }  # fmt: skip


def retrieval_model_needs(
    config: RunConfig, build: Callable[[], RetrievalModel], num_items: int, num_train: int
) -> dict[str, int]:
    """What the towers, the vectors of all items and the negatives of a batch take on a rank.

    Args:
        config: The run.
        build: Makes the model, over `EmbeddingShapes`.
        num_items: Items of the corpus.
        num_train: Training pairs, which bound a batch.
    """
    assert config.negatives is not None
    assert config.retrieval is not None
    model, dim = _model_shape(build), getattr(config.model, "dim", 1)
    batch_size = min(config.train.batch_size, num_train)
    num_drawn = config.negatives.items_per_step(batch_size, num_items)
    num_places = config.retrieval.metrics().num_places
    num_asked = min(config.train.eval_batch_size, num_train)
    return {
        f"[model] with dim = {dim:,} and embeddings.dim = {config.embeddings.dim:,}":
            model.num_weights * _FLOAT * (2 + state_numbers(config)),
        f"model.dim = {dim:,} for the vectors of {num_items:,} items": num_items * dim * _FLOAT,
        f"train.batch_size = {config.train.batch_size:,}":
            batch_size * (2 * dim + model.num_outputs) * _FLOAT,
        f"[negatives] with {num_drawn:,} items per step of vectors of {dim:,}":
            num_drawn * dim * _FLOAT,
        f"[retrieval] with cut-offs up to {num_places:,}": num_asked * num_places * _ID,
    }  # fmt: skip


def graph_model_needs(
    config: RunConfig, build: Callable[[], GraphModel], num_train: int
) -> dict[str, int]:
    """What the layers and a batch of seeds take on a rank.

    Of a batch, the seeds alone are counted: how many neighbours they share is not known before.

    Args:
        config: The run.
        build: Makes the model, over `EmbeddingShapes`.
        num_train: Training examples, which bound a batch.
    """
    model, hidden = _model_shape(build), getattr(config.model, "hidden", 1)
    batch_size = min(config.train.batch_size, num_train)
    return {
        f"[model] with hidden = {hidden:,} and embeddings.dim = {config.embeddings.dim:,}":
            model.num_weights * _FLOAT * (2 + state_numbers(config)),
        f"train.batch_size = {config.train.batch_size:,}":
            batch_size * (config.embeddings.dim + hidden) * 2 * _FLOAT,
    }  # fmt: skip


def specs_of(
    config: RunConfig, features: Iterable[FeatureSpec], vocabularies: Mapping[str, int]
) -> list[TableSpec]:
    """The tables of a run, each once, with the default way to draw them."""
    by_table = {feature.table: vocabularies[feature.name] for feature in features}
    return [TableSpec(name, size, config.embeddings.dim) for name, size in by_table.items()]


class EmbeddingShapes(EmbeddingCollection):
    """Embeddings as a model sees them while it is built: features and widths, but no rows.

    Args:
        features: The features.
        specs: Their tables.
    """

    def __init__(self, features: Sequence[FeatureSpec], specs: Iterable[TableSpec]) -> None:
        nn.Module.__init__(self)
        self.features = tuple(features)
        self.specs = {spec.name: spec for spec in specs}
        self.tables, self.store = None, None


class _ModelShape(NamedTuple):
    """Weights of a model, and what its linear layers put out for an example."""

    num_weights: int
    num_outputs: int


def _model_shape(build: Callable[[], nn.Module]) -> _ModelShape:
    """The shape of a model, by making it without memory for its weights.

    A model that cannot be built so counts as nothing: building it for real raises the error.
    """
    try:
        with torch.device("meta"):
            model = build()
    except OutsizeError:
        raise
    except Exception as error:
        if any(words in str(error) for words in _TOO_LARGE):
            return _ModelShape(1 << 63, 0)
        return _ModelShape(0, 0)
    layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
    num_weights = sum(weight.numel() for weight in model.parameters())
    return _ModelShape(num_weights, sum(layer.out_features for layer in layers))


def state_numbers(config: RunConfig) -> int:
    """Numbers that the optimizer of the dense weights stores per weight."""
    if config.optimizer.kind == "sgd":
        return 1 if config.optimizer.momentum else 0
    return 2 if config.optimizer.kind == "adamw" else 1
