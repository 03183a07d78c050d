"""What stands for the row of a node that a graph model has not seen: an experiment.

    python -m benchmarks.het.new_nodes --data FOLDER --out benchmarks/results

A model is trained on a graph without its validation nodes. These are then predicted through their
edges to nodes that were there, with different vectors in place of the row of their id: zeros, the
mean row of their type, the mean row of their neighbours of the same type, and their initial row.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import outsize
from benchmarks.het.graph_quality import run_file
from benchmarks.het.plain_graphsage import PlainSettings
from benchmarks.het.real_graphs import graph_section
from benchmarks.runner import benchmark_parser
from outsize.bench import Benchmark, measure
from outsize.data import DATA, GraphData, SyntheticGraphConfig
from outsize.data.click_data import Split
from outsize.data.graphs.graph import Graph, GraphDataConfig, Relation
from outsize.export.graph_encoder import GraphEncoder, Lists, NewNodes
from outsize.models import GraphModel
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

_SMALL = PlainSettings(batch_size=128, epochs=30)
GRAPHS: Mapping[str, PlainSettings] = {
    "synthetic": PlainSettings(batch_size=128),
    "cora": _SMALL,
    "citeseer": _SMALL,
    "musae_facebook": PlainSettings(),
    "acl": PlainSettings(rate=0.005),
}
DROPOUTS = (0.0, 0.5)
_SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class SeenNodesConfig(GraphDataConfig):
    """A graph without its validation nodes; a tenth of the training nodes validates instead.

    Attributes:
        name: "synthetic", or a graph of `real_graphs`.
        folder: Where its files are.
    """

    name: str = "cora"
    folder: str = ""

    def whole(self) -> GraphData:
        """The graph with all nodes."""
        if self.name == "synthetic":
            return SyntheticGraphConfig(num_nodes=4_000, mean_degree=12).build()
        tree = {"data": graph_section(self.name, self.folder), "model": {"kind": "graphsage"}}
        data = decode(RunConfig, tree, "benchmark").data
        assert isinstance(data, GraphDataConfig)
        return data.build()

    def build(self) -> GraphData:  # noqa: D102
        data = self.whole()
        assert data.labels is not None
        hidden = _mask(data)
        relations = {
            name: _without(edges, hidden, data.labels.node_type)
            for name, edges in data.graph.relations.items()
        }
        train = data.labelled["train"]
        is_validation = np.arange(len(train)) % 10 == 0
        labelled: dict[Split, Any] = {
            "train": train[~is_validation],
            "validation": train[is_validation],
            "test": data.labelled["test"],
        }
        return replace(data, graph=Graph(data.graph.nodes, relations), labelled=labelled)


DATA["seen-nodes"] = SeenNodesConfig


def _mask(data: GraphData) -> Any:
    assert data.labels is not None
    mask = np.zeros(data.graph.nodes[data.labels.node_type].num_nodes, bool)
    mask[data.labelled["validation"]] = True
    return mask


def _without(edges: Relation, hidden: Any, kind: str) -> Relation:
    counts = np.diff(edges.starts)
    targets = np.repeat(np.arange(len(counts)), counts)
    stays = np.ones(len(targets), bool)
    if edges.source == kind:
        stays &= ~hidden[edges.sources]
    if edges.target == kind:
        stays &= ~hidden[targets]
    kept = np.bincount(targets[stays], minlength=len(counts))
    starts = np.concatenate((np.zeros(1, np.int64), kept.cumsum()))
    return replace(edges, starts=starts, sources=edges.sources[stays])


def new_nodes(data: GraphData) -> tuple[Any, NewNodes]:
    """The validation nodes that have an edge from another node, with these edges."""
    assert data.labels is not None
    kind, hidden = data.labels.node_type, _mask(data)
    nodes = data.labelled["validation"]
    neighbors, total = {}, np.zeros(len(nodes), np.int64)
    for name, edges in data.graph.relations.items():
        if edges.target == kind:
            found = [edges.sources[edges.starts[n] : edges.starts[n + 1]] for n in nodes]
            lists = Lists.of(np.array([len(f) for f in found]), np.concatenate(found))
            if edges.source == kind:
                lists = lists.without(hidden[lists.values])
            neighbors[name], total = lists, total + lists.lengths
    new = NewNodes(len(nodes), neighbors)
    return nodes[total > 0], new.take(total > 0)


def rows_by_rule(
    model: GraphModel, graph: Graph, kind: str, nodes: Any, new: NewNodes
) -> dict[str, Callable[[], Tensor]]:
    """Rule → the row of each new node."""
    seen = torch.from_numpy(np.setdiff1d(np.arange(graph.nodes[kind].num_nodes), nodes))

    def rows(ids: Tensor) -> Tensor:
        return model.embeddings.ragged({kind: ids}, [kind])[kind]

    def of_neighbors() -> Tensor:
        total, count = torch.zeros(new.count, model.embeddings.dim), torch.zeros(new.count, 1)
        for name, lists in new.neighbors.items():
            if graph.relations[name].source == kind:
                owner = torch.from_numpy(np.repeat(np.arange(new.count), lists.lengths))
                total.index_add_(0, owner, rows(torch.from_numpy(lists.values.astype(np.int64))))
                count += torch.from_numpy(lists.lengths).float()[:, None]
        mean = rows(seen).mean(0).expand_as(total)
        return torch.where(count > 0, total / count.clamp_min(1), mean)

    return {
        "zeros": lambda: torch.zeros(new.count, model.embeddings.dim),
        "mean of type": lambda: rows(seen).mean(0).expand(new.count, -1),
        "mean of neighbours": of_neighbors,
        "initial row": lambda: rows(torch.from_numpy(nodes)),
    }


class _WithRows(GraphEncoder):
    """Gives each new node a row of its own."""

    def __init__(self, model: GraphModel, graph: Graph, rows: Tensor) -> None:
        super().__init__(model, graph)
        self._rows = rows

    def _inputs(self, kind: str, new: NewNodes) -> Tensor:
        return self._rows


@torch.no_grad()
def measure_new(
    name: str, folder: str, dropout: float, seed: int, epochs: int | None
) -> dict[str, Any]:
    """The accuracy of each rule on new nodes."""
    settings = replace(GRAPHS[name], seed_dropout=dropout)
    settings = settings if epochs is None else replace(settings, epochs=epochs)
    tree = run_file(name, folder, settings, seed)
    tree["data"] = {"kind": "seen-nodes", "name": name, "folder": folder}
    config = decode(RunConfig, tree, "benchmark")
    with torch.enable_grad():
        result = outsize.train(config, quiet=True)
    assert isinstance(config.data, SeenNodesConfig)
    assert isinstance(result.model, GraphModel)
    data, seen = config.data.whole(), config.data.build()
    assert data.labels is not None
    kind, classes = data.labels.node_type, torch.from_numpy(data.labels.classes)
    nodes, new = new_nodes(data)
    found = {}
    for rule, rows in rows_by_rule(result.model, seen.graph, kind, nodes, new).items():
        encoder = _WithRows(result.model.eval(), seen.graph, rows())
        logits = encoder.encode(kind, np.full(new.count, -1), new)
        found[rule] = float((logits.argmax(1) == classes[torch.from_numpy(nodes)]).float().mean())
    return {"graph": name, "seed_dropout": dropout, "seed": seed, "num_new": new.count,
            "test": result.test["accuracy"], **found}  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    rules = ["zeros", "mean of type", "mean of neighbours", "initial row", "test"]
    rows = results["rows"]
    lines = [
        "Accuracy on new nodes in %, mean over seeds (least to most); test: of nodes that were in",
        "the graph, with rows of their own.\n",
        f"| graph | seed_dropout | new nodes | {' | '.join(rules)} |",
        "|---" * (len(rules) + 3) + "|",
    ]
    for name, dropout in dict.fromkeys((r["graph"], r["seed_dropout"]) for r in rows):
        own = [r for r in rows if (r["graph"], r["seed_dropout"]) == (name, dropout)]
        shown = []
        for rule in rules:
            values = [100 * r[rule] for r in own]
            shown.append(f"{statistics.mean(values):.1f} ({min(values):.1f}–{max(values):.1f})")
        lines.append(f"| {name} | {dropout} | {own[0]['num_new']:,} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def compare(say: Callable[[str], None], given: argparse.Namespace) -> dict[str, Any]:
    """Measure all graphs."""
    rows = []
    for name in given.only or GRAPHS:
        for dropout in DROPOUTS:
            for seed in _SEEDS:
                rows.append(measure_new(name, given.data, dropout, seed, given.epochs))
                say(json.dumps(rows[-1]))
    return {"rows": rows}


def _parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(BENCHMARK, has_quick=False)
    parser.add_argument("--data", required=True, help="the folder of the graphs")
    parser.add_argument("--only", action="append", default=[], metavar="GRAPH")
    parser.add_argument("--epochs", type=int, help="fewer epochs, to try the command")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the experiment as a command."""
    given = _parsed(words)
    measure(replace(BENCHMARK, run=lambda quick, say: compare(say, given)), given.out)


BENCHMARK = Benchmark(
    "new-nodes",
    "python -m benchmarks.het.new_nodes",
    "what stands for the row of a node that a model has not seen",
    lambda quick, say: compare(say, _parsed(None)),
    table,
)

if __name__ == "__main__":
    main()
