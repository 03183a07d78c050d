"""One file per kind of task; the loop serves them all."""

from collections.abc import Callable
from typing import Any

from outsize.training.config import RunConfig
from outsize.training.tasks.base import Task
from outsize.training.tasks.click import ClickTask
from outsize.training.tasks.links import LinkTask
from outsize.training.tasks.nodes import NodeTask
from outsize.training.tasks.retrieval import RetrievalTask


def _graph_task(config: RunConfig) -> Task[Any]:
    """The task that `graph.predict` names."""
    assert config.graph is not None  # as `RunConfig` has made sure
    return LinkTask(config) if config.graph.predict == "links" else NodeTask(config)


TASKS: dict[str, Callable[[RunConfig], Task[Any]]] = {
    "click": ClickTask,
    "retrieval": RetrievalTask,
    "graph": _graph_task,
}

__all__ = ["TASKS", "ClickTask", "RetrievalTask", "Task"]
