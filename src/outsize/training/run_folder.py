"""The folder of a run: `config.toml`, `metrics.jsonl`, `checkpoint/`, `report.html` and more."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outsize.errors import ConfigError, DataError, WriteError, one_line
from outsize.file_locks import folder_lock
from outsize.files import reason_of, require_readable_name, write_text_atomically
from outsize.json_files import Absent, Each, SchemaError, Whole, read_json
from outsize.training.config import RunConfig
from outsize.training.run_log import RunLog
from outsize.training.strict_toml import decode, encode, flatten, read_toml, to_toml

_MAY_CHANGE = ("checkpoint.", "log.", "train.log_every", "train.device")
_MEMORY = {
    "num_parameters": Absent(Whole()),
    "bytes_by_device": Absent(Each(Each(Whole()))),
}
_SUMMARY = {
    "steps": Whole(),
    "elapsed_s": float,
    "memory": {"total_bytes": Whole(), **_MEMORY},
    "memory_by_part": Absent(Each(_MEMORY)),
    "environment": Absent(Each(str)),
}
_LENGTHS = ("train.epochs", "train.steps")


class RunFolder:
    """One run on disk.

    Args:
        path: The folder; made by `begin`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.log = RunLog(self.metrics_file)
        self.checkpoints = path / "checkpoint"
        self.report_file = path / "report.html"
        self.summary_file = path / "summary.json"

    def begin(self, config: RunConfig) -> None:
        """Make the folder for a new run; refuse one that already holds a run."""
        if self.holds_run():
            raise ConfigError(
                f"{self.path} already holds a run: continue it with --resume, "
                "or choose another folder with --out"
            )
        require_readable_name(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(
                f"cannot make {self.path}: {reason_of(error)}; choose another folder with --out"
            ) from None
        self._write_config(config)

    def holds_run(self) -> bool:
        """Whether there is a run; raises if the folder cannot be read."""
        try:
            return self.config_file.exists()
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be read: {reason_of(error)}; let this user read it, or choose "
                "another folder"
            ) from error

    def update(self, config: RunConfig) -> None:
        """Write the configuration of a run that goes on with settings that may change."""
        if encode(self.config()) != encode(config):
            self._write_config(config)

    def restart(self, config: RunConfig) -> None:
        """Start over from the first step, in a folder that `begin` made."""
        self._write_config(config)
        self.log.clear()
        self.summary_file.unlink(missing_ok=True)

    def _write_config(self, config: RunConfig) -> None:
        write_text_atomically(self.config_file, to_toml(encode(config)))

    def require_same_run(self, config: RunConfig, *may_change: str) -> None:
        """Refuse to continue a run with another configuration.

        Args:
            config: The configuration now.
            may_change: Keys that may differ, besides those that cannot change the result.
        """
        if not self.holds_run():
            raise ConfigError(f"{self.path} holds no run to resume: start one without --resume")
        saved = flatten(encode(self.config()))
        asked = flatten(encode(config))
        keys = saved.keys() | asked.keys()
        for key in sorted(keys, key=lambda key: (not key.endswith(".kind"), key)):  # kinds explain
            if saved.get(key) != asked.get(key) and not key.startswith((*_MAY_CHANGE, *may_change)):
                if key in _LENGTHS:
                    if reason := config.why_not_extended:
                        raise ConfigError(
                            f"cannot resume {self.path} with another {key}: {reason}; change it "
                            "back, or start a new run with --out"
                        )
                    continue
                raise ConfigError(
                    f"cannot resume {self.path} with another configuration: {key} was "
                    f"{saved.get(key)!r} and is now {asked.get(key)!r}; "
                    "change it back, or start a new run with --out"
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other processes that would train in it."""
        busy = f"another process is training in {self.path}: wait for it, or stop it"
        needs = "a run is trained in a folder that this user may write to"
        with folder_lock(self.path, busy, needs):
            yield

    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        saved = read_toml(self.config_file)
        embeddings = saved.get("embeddings")
        if not isinstance(embeddings, dict):
            embeddings = {}
        if embeddings.get("method") == "cce" and "max_bytes" in embeddings:
            embeddings.setdefault("pointers", "plain")  # of runs before there were others
        return decode(RunConfig, saved, str(self.config_file))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the result of a run that has ended."""
        write_text_atomically(self.summary_file, f"{json.dumps(summary, indent=1)}\n")

    def summary(self) -> dict[str, Any] | None:
        """The result that was written; `None` for a run that has not ended, or an older one."""
        try:
            found: dict[str, Any] = read_json(self.summary_file, _SUMMARY)
        except FileNotFoundError:
            return None
        except (OSError, SchemaError) as error:
            raise DataError(
                f"{self.summary_file} cannot be read: {one_line(error, 200)}; delete it, and its "
                "facts are unknown"
            ) from None
        return found

    def metrics(self) -> list[dict[str, Any]]:
        """All complete lines."""
        return self.log.lines()
