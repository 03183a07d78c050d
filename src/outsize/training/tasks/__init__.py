"""One file per kind of task; the loop serves them all."""

from collections.abc import Callable
from typing import Any

from outsize.training.config import RunConfig
from outsize.training.tasks.base import Task
from outsize.training.tasks.click import ClickTask
from outsize.training.tasks.graph import make_graph_task
from outsize.training.tasks.retrieval import RetrievalTask

TASKS: dict[str, Callable[[RunConfig], Task[Any]]] = {
    "click": ClickTask,
    "retrieval": RetrievalTask,
    "graph": make_graph_task,
}

__all__ = ["TASKS", "ClickTask", "RetrievalTask", "Task"]
