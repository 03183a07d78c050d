"""Tasks on graphs: the classes of nodes, or links between them."""

from __future__ import annotations

from typing import Any

from outsize.training.config import RunConfig
from outsize.training.tasks.base import Task
from outsize.training.tasks.links import LinkTask
from outsize.training.tasks.nodes import NodeTask


def make_graph_task(config: RunConfig) -> Task[Any]:
    """The task that `graph.predict` names."""
    assert config.graph is not None  # as `RunConfig` has made sure
    return LinkTask(config) if config.graph.predict == "links" else NodeTask(config)
