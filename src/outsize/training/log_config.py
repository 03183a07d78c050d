"""Where the metrics of a run go besides `metrics.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.errors import ConfigError
from outsize.integrations.line_logs import require_package


@dataclass(frozen=True)
class LogConfig:
    """Further logs of a run; all take the lines of `metrics.jsonl`.

    Attributes:
        tensorboard: Whether to write TensorBoard event files to the folder `tensorboard` of the
            run; needs the extra `tensorboard`.
        wandb: A project of Weights & Biases to log to; needs the extra `wandb`.
    """

    tensorboard: bool = False
    wandb: str | None = None

    def __post_init__(self) -> None:
        if self.wandb is not None and not self.wandb.strip():
            raise ConfigError("wandb must be the name of a project: name one, or leave it out")

    @property
    def is_wanted(self) -> bool:
        """Whether there is any."""
        return self.tensorboard or self.wandb is not None

    def require_packages(self) -> None:
        """Raise a `ConfigError` that names the extra, if a package is not installed."""
        if self.tensorboard:
            require_package("tensorboard", "log.tensorboard = true")
        if self.wandb is not None:
            require_package("wandb", f"log.wandb = {self.wandb!r}")
