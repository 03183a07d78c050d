"""The folder of a run: `config.toml`, `metrics.jsonl`, `checkpoint/`, `report.html`."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outsize.errors import ConfigError, DataError, WriteError
from outsize.files import append_line, write_text_atomically
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, encode, flatten, read_toml, to_toml

_MAY_CHANGE = ("checkpoint.", "train.log_every", "train.device")


class RunFolder:
    """One run on disk.

    Args:
        path: The folder; made by `begin`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoint"
        self.report_file = path / "report.html"

    def begin(self, config: RunConfig) -> None:
        """Make the folder for a new run; refuse one that already holds a run."""
        if self.config_file.exists():
            raise ConfigError(
                f"{self.path} already holds a run: continue it with --resume, "
                "or choose another folder with --out"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"cannot make {self.path}: {error.strerror or error}") from None
        self.write_config(config)

    def write_config(self, config: RunConfig) -> None:
        """Say what a run that starts from its first step is."""
        write_text_atomically(self.config_file, to_toml(encode(config)))

    def require_same_run(self, config: RunConfig, *may_change: str) -> None:
        """Refuse to continue a run under another configuration.

        Args:
            config: The configuration now.
            may_change: Keys that may differ, besides those that cannot change the result.
        """
        if not self.config_file.exists():
            raise ConfigError(f"{self.path} holds no run to resume: start one without --resume")
        saved = flatten(encode(self.config()))
        asked = flatten(encode(config))
        keys = saved.keys() | asked.keys()
        for key in sorted(keys, key=lambda key: (not key.endswith(".kind"), key)):  # kinds explain
            if saved.get(key) != asked.get(key) and not key.startswith((*_MAY_CHANGE, *may_change)):
                raise ConfigError(
                    f"cannot resume {self.path} with another configuration: {key} was "
                    f"{saved.get(key)!r} and is now {asked.get(key)!r}; "
                    "change it back, or start a new run with --out"
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this folder meanwhile."""
        import fcntl

        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"another process is training in {self.path}: wait for it, or stop it"
                ) from None
            yield

    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        return decode(RunConfig, read_toml(self.config_file), str(self.config_file))

    def truncate_metrics(self, step: int) -> None:
        """Drop lines of steps that a resumed run will take again, and a line cut by a crash."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text_atomically(self.metrics_file, "".join(_to_line(line) for line in kept))

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one line; a crash can cut at most this line short."""
        append_line(self.metrics_file, _to_line(line))

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines."""
        if not self.metrics_file.exists():
            return []
        lines: list[dict[str, Any]] = []
        content = self.metrics_file.read_bytes()
        for number, line in enumerate(content.splitlines(keepends=True), start=1):
            try:
                found = json.loads(line)
            except ValueError:
                if not line.endswith(b"\n"):
                    break
                found = None
            if not isinstance(found, dict):
                raise DataError(f"{self.metrics_file}, line {number}: not a JSON object")
            lines.append(found)
        return lines


def _to_line(line: Mapping[str, Any]) -> str:
    """One JSON object; a metric that is no number (an AUC of one class) is null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
    return json.dumps(finite) + "\n"
