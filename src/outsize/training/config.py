"""The configuration of a run: one tree, one TOML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from outsize.bounds import MAX_RATE, require_at_least, require_between
from outsize.data import DATA, RETRIEVAL_DATA, ClickDataConfig, GraphDataConfig, RetrievalDataConfig
from outsize.errors import ConfigError
from outsize.models import MODELS, ClickModelConfig, GraphModelConfig, RetrievalModelConfig
from outsize.negatives import NEGATIVES, NegativesConfig
from outsize.registries import name_of
from outsize.training.embeddings_config import EmbeddingsConfig
from outsize.training.graph_config import GraphConfig
from outsize.training.log_config import LogConfig
from outsize.training.retrieval_config import RetrievalConfig
from outsize.training.schedule import ScheduleConfig
from outsize.training.served_weights import require_served
from outsize.training.store_config import StoreConfig
from outsize.training.strict_toml import (
    choice,
    decode,
    flatten,
    optional_choice,
    override,
    read_toml,
)
from outsize.training.tables_config import TablesConfig

EMBEDDINGS: Mapping[str, type[EmbeddingsConfig]] = MappingProxyType(
    {"store": StoreConfig, "tables": TablesConfig}
)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of dense weights.

    Attributes:
        kind: "adamw", "sgd" or "adagrad".
        learning_rate: Step size.
        weight_decay: Decoupled for AdamW, an L2 term for the others.
        momentum: For SGD.
    """

    kind: Literal["adamw", "sgd", "adagrad"] = "adamw"
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require_between(self, 0, MAX_RATE, "learning_rate", "weight_decay")
        require_between(self, 0, 1, "momentum")
        if self.momentum and self.kind != "sgd":
            raise ConfigError(f"momentum belongs to sgd, but the optimizer is {self.kind}")


@dataclass(frozen=True)
class TrainConfig:
    """How long and how to train.

    Attributes:
        batch_size: Examples per step.
        eval_batch_size: Examples per batch of an evaluation.
        epochs: Passes over the training data.
        steps: Stop after this many steps, if that comes first.
        validate_every: Steps between validations, besides one at the end of each epoch.
        early_stop: Stop after an epoch whose best validation loss is worse than the best of the
            epoch before it (the rule of the CCE experiments).
        log_every: Steps between training lines in the log.
        clip_norm: Scale gradients, dense and rows together, down to this norm.
        precision: "float32", or "bfloat16" for autocast on CUDA.
        device: "auto" takes CUDA where there is one.
        deterministic: Use deterministic kernels only, so that a run on CUDA can be repeated and
            resumed bit for bit; some are slower. The CPU is deterministic anyway.
        cuda_graph: Whether a step is captured in a CUDA graph and launched as one; the results are
            the same. By default for click models on one GPU, with fused rows or tables.
    """

    batch_size: int = 2048
    eval_batch_size: int = 16_384
    epochs: int = 1
    steps: int | None = None
    validate_every: int | None = None
    early_stop: bool = True
    log_every: int = 50
    clip_norm: float | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    device: str = "auto"
    deterministic: bool = False
    cuda_graph: bool | None = None

    def __post_init__(self) -> None:
        require_at_least(self, 1, "batch_size", "eval_batch_size", "epochs", "log_every")
        require_at_least(self, 1, "steps", "validate_every")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm must be > 0, but got {self.clip_norm}")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the run is saved.

    Attributes:
        every: Steps between checkpoints; one more is written at the end.
        keep: How many to keep.
        best: Whether to write one at each validation that is the best so far, and to keep the last
            of these besides; `outsize export` then finds the weights of the reported metrics.
    """

    every: int = 1000
    keep: int = 2
    best: bool = True

    def __post_init__(self) -> None:
        require_at_least(self, 1, "every", "keep")


@dataclass(frozen=True)
class RunConfig:
    """A whole run.

    Attributes:
        seed: Seed of weights and rows; the data has its own.
        data: What to train on.
        model: What to train.
        embeddings: How its embeddings are stored.
        negatives: What queries are trained against, for a retrieval model and for links.
        retrieval: What is masked and measured, likewise.
        graph: What is predicted from which neighbours, for a graph model.
        optimizer: How dense weights are trained.
        schedule: How learning rates change.
        train: How long and how.
        checkpoint: When the run is saved.
        log: Where its metrics go besides `metrics.jsonl`.
    """

    seed: int = 0
    data: ClickDataConfig | RetrievalDataConfig | GraphDataConfig = choice(DATA, "synthetic")
    model: ClickModelConfig | RetrievalModelConfig | GraphModelConfig = choice(MODELS, "dlrm")
    embeddings: EmbeddingsConfig = choice(EMBEDDINGS, "store")
    negatives: NegativesConfig | None = optional_choice(NEGATIVES, "cache")
    retrieval: RetrievalConfig | None = None
    graph: GraphConfig | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise ConfigError(f"seed must be a 64-bit integer, but got {self.seed}")
        self._require_one_task()
        if self.is_asynchronous:
            require_served(self.optimizer.kind)
            if self.optimizer.momentum or self.optimizer.weight_decay:
                raise ConfigError(
                    "asynchronous training (embeddings.store = 'served') has no momentum and no "
                    "weight_decay: leave them out of [optimizer]"
                )

    @property
    def task(self) -> str:
        """What kind of task this is: a key of `outsize.training.tasks.TASKS`."""
        return self.model.task

    @property
    def loss_label(self) -> str:
        """The display name of the loss of an evaluation, which depends on the task."""
        if self.task == "click":
            return "log loss"
        predicts_nodes = self.graph is not None and self.graph.predict == "nodes"
        return "cross-entropy" if predicts_nodes else "softmax loss"

    @property
    def reads_texts(self) -> bool:
        """Whether the model encodes texts."""
        return getattr(self.model, "reads_texts", False)

    @property
    def has_tables(self) -> bool:
        """Whether the model reads tables, as `embeddings` describes them."""
        return getattr(self.model, "has_tables", True)

    def _require_one_task(self) -> None:
        """Refuse parts of different tasks, and complete those of retrieval and of graphs."""
        if self.data.task != self.model.task:
            fitting = [
                name
                for name, kind in DATA.items()
                if kind.task == self.model.task
                and getattr(kind, "holds_texts", False) == self.reads_texts
            ]
            raise ConfigError(
                f"model.kind = {name_of(MODELS, self.model)!r} is for {self.model.task} data, but "
                f"data.kind = {name_of(DATA, self.data)!r} is {self.data.task} data: choose "
                f"data.kind from {', '.join(fitting)}, or another model"
            )
        if self.task != "click" and self.is_asynchronous:
            raise ConfigError(
                "embeddings.store = 'served' is for click models: choose 'local' or 'sharded'"
            )
        if self.task != "click" and self.embeddings.overlap:
            raise ConfigError(
                f"embeddings.overlap is for click models, but this one is for {self.task}: its "
                "batches are read in several parts, which depend on each other. Leave it out"
            )
        if isinstance(self.model, GraphModelConfig):
            self._complete_graph(self.model)
        elif self.graph is not None:
            raise self._misplaced("graph", "a graph model", "graphsage")
        if isinstance(self.data, RetrievalDataConfig):
            self._require_texts_for_texts(self.data)
        if self.task == "retrieval":
            object.__setattr__(self, "negatives", self.negatives or NEGATIVES["cache"]())
            object.__setattr__(self, "retrieval", self.retrieval or RetrievalConfig())
        elif self.task == "click":
            for name in ("negatives", "retrieval"):
                if getattr(self, name) is not None:
                    raise self._misplaced(name, "a retrieval model", "two-tower")

    def _require_texts_for_texts(self, data: RetrievalDataConfig) -> None:
        if data.holds_texts == self.reads_texts:
            return
        fitting = [
            name for name, kind in RETRIEVAL_DATA.items() if kind.holds_texts == self.reads_texts
        ]
        raise ConfigError(
            f"model.kind = {name_of(MODELS, self.model)!r} reads "
            f"{'texts' if self.reads_texts else 'features'}, but data.kind = "
            f"{name_of(DATA, data)!r} holds {'texts' if data.holds_texts else 'features'}: choose "
            f"data.kind from {', '.join(fitting)}, or another model"
        )

    def _misplaced(self, section: str, owner: str, kind: str) -> ConfigError:
        return ConfigError(
            f"[{section}] belongs to {owner}, but model.kind = "
            f"{name_of(MODELS, self.model)!r}: leave it out, or set model.kind = {kind!r}"
        )

    def _complete_graph(self, model: GraphModelConfig) -> None:
        graph = self.graph or GraphConfig()
        graph.require_layers(model.layers)
        object.__setattr__(self, "graph", graph)
        if graph.predict == "links":
            if self.negatives is None:
                raise ConfigError(
                    "graph.predict = 'links' trains against negatives, but there is no [negatives]:"
                    " add it, for example with kind = 'in-batch'"
                )
            object.__setattr__(self, "retrieval", self.retrieval or RetrievalConfig())
            return
        for name in ("negatives", "retrieval"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"[{name}] is for graph.predict = 'links', but it is 'nodes': leave it out, or "
                    "predict links"
                )

    @property
    def why_not_extended(self) -> str:
        """Why a run cannot be made longer when it is resumed; empty if it can."""
        if self.schedule.shape != "constant":
            return f"schedule.shape = {self.schedule.shape!r} decays to the end of the run"
        one, other = (self.embeddings.recluster_steps(total, 1000) for total in (2000, 4000))
        if one != other:
            return "embeddings.recluster spreads its clusterings over the run (set its every)"
        return ""

    @property
    def is_asynchronous(self) -> bool:
        """Whether each rank trains at its own pace, all parameters being served."""
        return self.embeddings.is_asynchronous


def load_config(path: str | Path, settings: Sequence[str] = ()) -> RunConfig:
    """Read a run file and apply `section.key=value` overrides."""
    path = Path(path)
    tree = override(read_toml(path), settings)
    for key, value in flatten(tree).items():
        if any("\x00" in str(part) for part in (value if isinstance(value, list) else [value])):
            raise ConfigError(f"{path}: {key} holds a NUL character, which no name or path has")
    return decode(RunConfig, tree, str(path))
