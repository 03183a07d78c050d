"""The logs of `[log]`, opened and closed with a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from outsize.integrations.line_logs import LineLog
from outsize.training.config import RunConfig
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml


@contextmanager
def further_logs(config: RunConfig, folder: RunFolder) -> Iterator[list[LineLog]]:
    """The logs that a run asks for, with the lines that its own log has; closed on leaving."""
    tree, lines = encode(config), folder.metrics() if config.log.is_wanted else []
    logs: list[LineLog] = []
    failed = True
    try:
        if config.log.tensorboard:
            from outsize.integrations.tensorboard import TensorBoardLog

            logs.append(TensorBoardLog(folder.path / "tensorboard", lines, to_toml(tree)))
        if config.log.wandb is not None:
            from outsize.integrations.wandb import WandbLog

            logs.append(WandbLog(folder.path, config.log.wandb, tree, lines))
        yield logs
        failed = False
    finally:
        for log in logs:
            log.close(failed)
