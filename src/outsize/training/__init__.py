"""Runs: configuration, the loop, tasks, reports."""

from outsize.training.config import RunConfig, load_config
from outsize.training.export_run import export_run
from outsize.training.run import RunResult, train

__all__ = ["RunConfig", "RunResult", "export_run", "load_config", "train"]
