"""The folder of a run: `config.toml`, `metrics.jsonl`, `checkpoint/`, `report.html`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.checkpoint import latest_checkpoint, write_text_atomically
from outsize.errors import ConfigError, DataError
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
            write_text_atomically(self.config_file, to_toml(encode(config)))
        except OSError as error:
            raise ConfigError(f"cannot write to {self.path}: {error.strerror or error}") from None

    def resume(self, config: RunConfig) -> Path | None:
        """The checkpoint to continue from, if any, after checking that it is the same run."""
        if not self.config_file.exists():
            raise ConfigError(f"{self.path} holds no run to resume: start one without --resume")
        saved = flatten(encode(self.config()))
        asked = flatten(encode(config))
        for key in sorted(saved.keys() | asked.keys()):
            if saved.get(key) != asked.get(key) and not key.startswith(_MAY_CHANGE):
                raise ConfigError(
                    f"cannot resume {self.path} with another configuration: {key} was "
                    f"{saved.get(key)!r} and is now {asked.get(key)!r}; "
                    "change it back, or start a new run with --out"
                )
        return latest_checkpoint(self.checkpoints)

    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        return decode(RunConfig, read_toml(self.config_file), str(self.config_file))

    def truncate_metrics(self, step: int) -> None:
        """Drop lines of steps that a resumed run will take again, and a line cut by a crash."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text_atomically(self.metrics_file, "".join(_to_line(line) for line in kept))

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add one line; a crash can cut at most this line short."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(_to_line(line))
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines."""
        if not self.metrics_file.exists():
            return []
        lines: list[dict[str, Any]] = []
        text = self.metrics_file.read_text("utf-8")
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                if not line.endswith("\n"):
                    break
                raise DataError(f"{self.metrics_file}, line {number}: not a JSON object") from None
        return lines


def _to_line(line: Mapping[str, Any]) -> str:
    """One JSON object; a metric that is no number (an AUC of one class) is null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
    return json.dumps(finite) + "\n"
