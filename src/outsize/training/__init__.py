"""Runs: configuration, the loop, tasks, reports."""

from outsize.training.config import RunConfig, load_config
from outsize.training.run import RunResult, train

__all__ = ["RunConfig", "RunResult", "load_config", "train"]
