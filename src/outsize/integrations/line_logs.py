"""Loggers of other libraries that take the lines of `metrics.jsonl`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from outsize.errors import ConfigError

Line = Mapping[str, Any]
_NO_SCALARS = ("step", "split", "table", "train_s")


class LineLog(ABC):
    """Takes the lines of a run's log, one by one; closed when the run ends or fails."""

    @abstractmethod
    def write(self, line: Line) -> None:
        """Log a line, which has "step" and "split"."""

    @abstractmethod
    def close(self, failed: bool) -> None:
        """Write what is pending; `failed` says whether an error ended the run."""


def scalars_of(line: Line) -> dict[str, float]:
    """The numbers of a line by tag: "train/loss", "recluster/c26/mse"; null and lists have none."""
    place = "/".join(str(line[name]) for name in ("split", "table") if name in line)
    return {
        f"{place}/{name}": float(value)
        for name, value in line.items()
        if name not in _NO_SCALARS
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    }


def require_package(name: str, key: str) -> None:
    """Raise a `ConfigError` if a package is not installed.

    Args:
        name: The package, which is also the name of the extra that installs it.
        key: The key of the run file that asks for it.
    """
    if find_spec(name) is None:
        raise ConfigError(
            f"{key} needs the package {name}, which is not installed: pip install "
            f"'outsize[{name}]', or leave the key out"
        )
