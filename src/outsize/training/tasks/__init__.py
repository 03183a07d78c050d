"""One file per kind of task; the loop serves them all."""

from outsize.training.tasks.base import Task
from outsize.training.tasks.click import ClickTask

__all__ = ["ClickTask", "Task"]
