"""Export the graph model of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from outsize.checkpoint import load_checkpoint
from outsize.data import EdgesConfig, GraphData
from outsize.data.graphs.node_files import NodeFile
from outsize.errors import ConfigError
from outsize.export.graph import (
    GraphPurpose,
    link_vectors,
    make_predictor,
    own_rows,
    write_exported_graph,
)
from outsize.export.graph_columns import GraphColumns
from outsize.export.graph_predictors import LinkPredictor, NodePredictor
from outsize.export.graph_tensors import read_part
from outsize.hashing import derive_seed
from outsize.models import GraphModel, GraphModelConfig
from outsize.stores.row_files import load_rows
from outsize.training.config import RunConfig
from outsize.training.loop_state import dense_state, load_dense_state
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import ChosenCheckpoint, choose_checkpoint
from outsize.training.saved_state import fitting, require_state, require_weights
from outsize.training.tasks import TASKS
from outsize.training.tasks.links import LinkTask
from outsize.training.tasks.nodes import NodeTask


@dataclass(frozen=True)
class LoadedGraphRun:
    """The task of a graph run with the weights of a checkpoint.

    Attributes:
        task: The task, with its model and its data.
        config: The run.
        chosen: The checkpoint.
    """

    task: NodeTask | LinkTask
    config: RunConfig
    chosen: ChosenCheckpoint

    @property
    def model(self) -> GraphModel:
        """The model."""
        return self.task.model

    @property
    def data(self) -> GraphData:
        """The graph with what is learned on it."""
        return self.task.graph_data if isinstance(self.task, LinkTask) else self.task.data

    def purpose(self) -> GraphPurpose:
        """What the run predicts, and how rows ask for it."""
        return (_links if isinstance(self.task, LinkTask) else _nodes)(self)

    def cold(self) -> Tensor | None:
        """For links, the sources without a training link."""
        if not isinstance(self.task, LinkTask):
            return None
        return (self.task.data.known("validation").counts() == 0).nonzero().flatten()

    def predictor(self) -> NodePredictor | LinkPredictor:
        """What predicts raw rows, without an export."""
        purpose = self.purpose()
        graph = read_part(self.data.graph, self.model.types_by_layer)
        vectors = {}
        if purpose.target_type is not None:
            vectors = link_vectors(self.model, graph, purpose, self.cold())
        rows = own_rows(self.model, [purpose.node_type])
        return make_predictor(self.model, graph, purpose, rows, vectors)


def load_graph_run(run: RunFolder, step: int | None = None) -> LoadedGraphRun:
    """Build the task of a run, and load the weights of its best validation, or of a step."""
    config, chosen = run.config(), choose_checkpoint(run, step)
    task: Any = TASKS[config.task](config)
    store = task.embeddings.store
    state = load_checkpoint(chosen.folder)
    with fitting(chosen.folder):
        require_state(state, task.judge, is_older=True)
        weights = state["model"]
        require_weights(weights, dense_state(task.trained, store))
    if state["data"] != task.fingerprint:
        raise ConfigError(
            f"the data has changed since {run.path} was trained: bring the old data back"
        )
    load_dense_state(task.trained, store, weights)
    if store is not None:
        load_rows(store, chosen.folder)
    return LoadedGraphRun(task, config, chosen)


def export_graph(folder: RunFolder, out: Path, step: int | None, facts_of: Any) -> dict[str, Any]:
    """Write the model of a graph run.

    Args:
        folder: The run.
        out: The folder to write.
        step: Take the checkpoint of this step instead of the best validation's.
        facts_of: Makes the card's facts of the data from the run, sizes and the fingerprint.
    """
    loaded = load_graph_run(folder, step)
    chosen, data = loaded.chosen, loaded.data
    assert isinstance(loaded.config.model, GraphModelConfig)
    training = chosen.facts()
    written = write_exported_graph(
        out,
        loaded.model.eval(),
        loaded.config.model,
        data.graph,
        loaded.purpose(),
        training,
        data=facts_of(loaded.config, _sizes(data), data.fingerprint),
        cold=loaded.cold(),
    )
    return {**written, **training, "note": chosen.note}


def _sizes(data: GraphData) -> dict[str, int]:
    nodes = {f"{kind}_nodes": own.num_nodes for kind, own in data.graph.nodes.items()}
    edges = {f"{name}_edges": own.num_edges for name, own in data.graph.relations.items()}
    return nodes | edges


def _nodes(loaded: LoadedGraphRun) -> GraphPurpose:
    labels = loaded.data.labels
    assert labels is not None
    kind, source = labels.node_type, loaded.config.data
    settings: dict[str, Any] = {"id": kind, "label": "label"}
    if isinstance(source, EdgesConfig) and (file := _node_file(source, kind)) is not None:
        settings = {
            "id": file.id,
            "label": file.label,
            "separator": file.separator,
            "label_separator": file.label_separator or "|",
            "columns": file.columns,
            "delimiter": file.delimiter,
            "quoted": file.quoted,
        }
    return GraphPurpose(
        kind,
        _columns(loaded, kind, settings),
        labels.class_names,
        labels.is_multi_label,
        **_evaluated(loaded.config),
    )


def _links(loaded: LoadedGraphRun) -> GraphPurpose:
    name, source = loaded.data.link_relation, loaded.config.data
    assert name is not None
    relation = loaded.data.graph.relations[name]
    settings: dict[str, Any] = {"id": "source", "target": "target"}
    if isinstance(source, EdgesConfig):
        file = source.relations.get(name)
        form = source if file is None else file
        ends = (source.source, source.target) if file is None else file.ends
        settings = {
            "id": ends[0],
            "target": ends[1],
            "columns": form.columns,
            "delimiter": form.delimiter,
            "quoted": form.quoted,
        }
    assert loaded.config.retrieval is not None
    assert isinstance(loaded.task, LinkTask)
    beta = float(loaded.task.negatives.temperature().detach())
    return GraphPurpose(
        relation.source,
        _columns(loaded, relation.source, settings),
        target_type=relation.target,
        ranking={"metrics": loaded.config.retrieval.cuts(), "beta": beta},
        **_evaluated(loaded.config),
    )


def _columns(loaded: LoadedGraphRun, kind: str, settings: Mapping[str, Any]) -> GraphColumns:
    graph = read_part(loaded.data.graph, loaded.model.types_by_layer)
    return GraphColumns.of(graph.schema, kind, **settings)


def _node_file(source: EdgesConfig, kind: str) -> NodeFile | None:
    return source.node_types.get(kind) if source.nodes is None else source.nodes


def _evaluated(config: RunConfig) -> dict[str, Any]:
    assert config.graph is not None
    return {"fan_out": config.graph.eval_fan_out, "seed": derive_seed(config.seed, "neighbors")}
