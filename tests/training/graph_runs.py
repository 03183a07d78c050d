"""Small runs on graphs."""

from dataclasses import dataclass

import numpy as np
from graph_inputs import several_types

from outsize.data import DATA
from outsize.data.graphs.graph import GraphData, GraphDataConfig, NodeLabels
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override

NODES = {
    "data": {"kind": "synthetic-graph", "num_nodes": 400, "num_classes": 4, "mean_degree": 10},
    "model": {"kind": "graphsage", "hidden": 8},
    "graph": {"fan_out": [4, 4]},
    "embeddings": {"dim": 6},
    "train": {"batch_size": 48, "epochs": 2, "validate_every": 4, "log_every": 3,
              "early_stop": False, "device": "cpu"},
    "checkpoint": {"every": 5},
}  # fmt: skip
LINKS = {
    **NODES,
    "data": {"kind": "synthetic-graph", "num_nodes": 80, "num_classes": 4, "mean_degree": 6,
             "links": {"validation": 0.1, "test": 0.1}},
    "graph": {"predict": "links", "fan_out": [4, 4]},
    "negatives": {"kind": "in-batch"},
}  # fmt: skip


def make_config(base, *settings):
    return decode(RunConfig, override(base, settings), "test")


@dataclass(frozen=True)
class PapersConfig(GraphDataConfig):
    """Papers of several classes, with authors, venues and words.

    Attributes:
        multi_label: Whether a paper has several classes.
        missing: What is missing: "labels", "half the labels", "a split" or "links".
        links: Whether the authors of papers are predicted.
    """

    multi_label: bool = False
    missing: str = ""
    links: bool = False

    def build(self):
        graph, draw = several_types(), np.random.default_rng(0)
        classes = draw.integers(0, 3, 25)
        if self.missing == "half the labels":
            classes[::2] = -1
        if self.multi_label:
            classes = (draw.random((25, 3)) < 0.5).astype(np.int8)
        nodes = {"train": np.arange(15), "validation": np.arange(15, 20), "test": np.arange(20, 25)}
        if self.missing == "a split":
            nodes["validation"] = np.zeros(0, np.int64)
        labels = NodeLabels("paper", classes, ("a", "b", "c"))
        links, name = {}, None
        if self.links:
            name, writes = "writes", graph.relations["writes"]
            papers = np.repeat(np.arange(25), np.diff(writes.starts))
            train = np.stack((writes.sources, papers))
            held_out = np.stack((train[0, :8], (train[1, :8] + 7) % 25))
            links = {"train": train, "validation": held_out[:, :4], "test": held_out[:, 4:]}
        return GraphData(
            graph, "papers", None if self.missing == "labels" else labels, nodes, links, name
        )


DATA["test-papers"] = PapersConfig
PAPERS = override({**NODES, "data": {"kind": "test-papers"}}, ["train.batch_size=7"])
