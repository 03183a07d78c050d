"""From a configuration to the objects of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, AdamW, Optimizer

from outsize.collection import EmbeddingCollection
from outsize.contracts import EmbeddingTable
from outsize.data import (
    ClickData,
    ClickDataConfig,
    RetrievalData,
    RetrievalDataConfig,
    TextDataConfig,
)
from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.models import (
    ClickModel,
    ClickModelConfig,
    RetrievalModel,
    RetrievalModelConfig,
)
from outsize.models.text import NoEmbeddings
from outsize.ranks.collectives import first_rank_first, local_rank, mean_over_ranks_, world_size
from outsize.spec import FeatureSpec, Init, TableSpec
from outsize.suggestions import few
from outsize.training.build_texts import build_text_data
from outsize.training.config import OptimizerConfig, RunConfig
from outsize.training.device_optimizers import DeviceAdagrad, DeviceAdamW, DeviceSGD
from outsize.training.memory_needs import (
    EmbeddingShapes,
    click_model_needs,
    embedding_needs,
    require_memory,
    retrieval_model_needs,
    specs_of,
)
from outsize.training.served_weights import ServedWeights


def data_parallel(config: RunConfig, model: nn.Module) -> nn.Module:
    """Wrap a model so that its dense gradients are averaged over ranks that train in step.

    Without weights there is nothing to average, and DDP would refuse.
    """
    if world_size() == 1 or config.is_asynchronous:
        return model
    if not any(weight.requires_grad for weight in model.parameters()):
        return model
    return averaging_gradients(model)


def averaging_gradients(model: nn.Module) -> nn.Module:
    """Wrap a model so that a backward pass averages its gradients over ranks.

    DDP ignores all buffers: rows belong to a store, and the rest are constants.

    DDP lays gradients out again after its first step. Of three ranks and more, gloo would then add
    them in another order, and a resumed run would not be the same run.
    """
    buffers = [name for name, _ in model.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, buffers)
    wrapped = DistributedDataParallel(model)
    if world_size() > 2 and dist.get_backend() == "gloo":
        # A lambda, since DDP does not read annotations that are texts.
        wrapped.register_comm_hook(None, lambda state, bucket: _averaged(bucket))
    return wrapped


def _averaged(bucket: Any) -> Future[torch.Tensor]:
    """The gradients of a bucket, averaged in the order of ranks."""
    gradients = bucket.buffer()
    mean_over_ranks_(gradients)
    done: Future[torch.Tensor] = Future()
    done.set_result(gradients)
    return done


def build_device(name: str) -> torch.device:
    """The device to train on; "auto" is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        if local_rank() >= torch.cuda.device_count():
            raise ConfigError(
                f"rank {local_rank()} of this machine has no GPU of its own: it has "
                f"{torch.cuda.device_count()}; start as many ranks, or set train.device = 'cpu'"
            )
        return torch.device("cuda", local_rank())
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"train.device = {name!r} is not a device; try 'auto' or 'cpu'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"train.device = {name!r}, but this machine has no usable CUDA device")
    return device


def build_click_data(config: RunConfig) -> ClickData:
    """The log of a run; one rank of a machine opens it first, and encodes it if need be."""
    assert isinstance(config.data, ClickDataConfig)  # as `RunConfig` has made sure
    require_memory(config.data.memory_needs())
    with first_rank_first():
        return config.data.build()


def build_retrieval_data(config: RunConfig) -> RetrievalData:
    """The pairs of a run."""
    assert isinstance(config.data, RetrievalDataConfig)
    require_memory(config.data.memory_needs())
    if isinstance(config.data, TextDataConfig):
        return build_text_data(config)
    return config.data.build()


def build_embeddings(
    config: RunConfig, features: Sequence[FeatureSpec], vocabularies: Mapping[str, int]
) -> EmbeddingCollection:
    """Each feature over its table."""
    wanted = config.embeddings
    std = wanted.init_std
    if std is None and isinstance(config.model, ClickModelConfig):
        std = config.model.initial_std
    init = Init() if std is None else Init(std=std)
    sizes = {f.table: vocabularies[f.name] for f in features}  # several may share a table
    specs = [TableSpec(table, size, wanted.dim, init) for table, size in sizes.items()]
    return wanted.build(features, specs, config.seed)


def build_model(config: RunConfig, data: ClickData) -> ClickModel:
    """The click model of a run, embeddings included; refused where memory cannot hold it."""
    assert isinstance(config.model, ClickModelConfig)
    specs = specs_of(config, data.features, data.vocabularies)
    num_train, *held_out = (data.num_examples(split) for split in SPLITS)
    shapes, sizes = EmbeddingShapes(data.features, specs), (num_train, max(held_out))
    needs = embedding_needs(config, specs)
    needs |= click_model_needs(config, data.num_dense, shapes, sizes)
    require_memory(needs, build_device(config.train.device))
    embeddings = build_embeddings(config, data.features, data.vocabularies)
    return config.model.build(data.num_dense, embeddings, config.seed)


def build_retrieval_model(config: RunConfig, data: RetrievalData) -> RetrievalModel:
    """The retrieval model of a run, with embeddings of the features that it reads.

    Refused where memory cannot hold it.
    """
    assert isinstance(config.model, RetrievalModelConfig)
    if config.model.has_tables:
        model = _build_over_tables(config, config.model, data)
    else:
        model = config.model.build(NoEmbeddings(), (), (), config.seed)
    model.use_tokenizer(data.tokenizer)
    return model


def _build_over_tables(
    config: RunConfig, wanted: RetrievalModelConfig, data: RetrievalData
) -> RetrievalModel:
    of_queries = wanted.features_of(tuple(data.queries.features), "query")
    of_items = wanted.features_of(tuple(data.items.features), "item")
    ids = [feature for feature in data.features if feature.name in {*of_queries, *of_items}]
    if not ids:
        raise ConfigError(
            f"the towers read numbers alone ({few((*of_queries, *of_items))}), which have no "
            "embeddings to train: name one that is an id as well"
        )
    numbers = [name for name in (*of_queries, *of_items) if name not in data.vocabularies]
    specs = specs_of(config, ids, data.vocabularies)

    def build(embeddings: EmbeddingCollection) -> RetrievalModel:
        return wanted.build(embeddings, of_queries, of_items, config.seed, numbers)

    needs = embedding_needs(config, specs)
    needs |= retrieval_model_needs(
        config,
        lambda: build(EmbeddingShapes(ids, specs)),
        data.items.num_rows,
        data.num_pairs("train"),
    )
    require_memory(needs, build_device(config.train.device))
    return build(build_embeddings(config, ids, data.vocabularies))


def build_dense_optimizer(
    config: OptimizerConfig, model: nn.Module, table_rate: float | None = None
) -> Optimizer:
    """The optimizer of every parameter of a model.

    Args:
        config: Its kind and settings.
        model: The model.
        table_rate: The learning rate of the tables' parameters; by default that of the others.
    """
    rate, decay = config.learning_rate, config.weight_decay
    # A model may consist of rows alone, and torch refuses an optimizer of nothing.
    weights: list[Any] = list(model.parameters()) or [nn.Parameter(torch.empty(0))]
    if table_rate is not None:
        tables = [part for part in model.modules() if isinstance(part, EmbeddingTable)]
        own = {id(weight): weight for table in tables for weight in table.parameters()}
        others = [weight for weight in weights if id(weight) not in own]
        groups: list[dict[str, Any]] = [
            {"params": others},
            {"params": list(own.values()), "lr": table_rate},
        ]
        weights = [group for group in groups if group["params"]] or weights
    on_cuda = {weight.device.type for weight in model.parameters()} == {"cuda"}
    if config.kind == "adamw":
        return (DeviceAdamW if on_cuda else AdamW)(weights, lr=rate, weight_decay=decay)
    if config.kind == "adagrad":
        return (DeviceAdagrad if on_cuda else Adagrad)(weights, lr=rate, weight_decay=decay)
    momentum = config.momentum
    return (DeviceSGD if on_cuda else SGD)(weights, lr=rate, weight_decay=decay, momentum=momentum)


def build_optimizer(config: RunConfig, model: nn.Module) -> Optimizer:
    """The optimizer of every parameter of a run's model, wherever the parameters live."""
    if config.is_asynchronous:
        wanted = config.optimizer
        return ServedWeights(list(model.parameters()), wanted.kind, wanted.learning_rate)
    return build_dense_optimizer(config.optimizer, model, config.embeddings.table_rate)
