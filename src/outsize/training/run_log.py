"""`metrics.jsonl`, the log of a run: one JSON object per line, with its step and split.

A checkpoint records in `log.json` how much of the log belongs to it: lines, bytes and their
SHA-256, and how many seconds were trained. A resumed run continues from exactly those lines, and
one whose log lacks any of them is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.contracts.messages import BYTE_KINDS
from outsize.errors import DataError
from outsize.files import append_line, reason_of, write_json, write_text_atomically
from outsize.json_files import Absent, Each, OneOf, SchemaError, Whole, check, parse_json
from outsize.verified_folders import WriteFiles, read_manifest, read_verified, require_whole

_RECORD = "log.json"
_FACTS = {"lines": Whole(), "bytes": Whole(), "sha256": str, "train_s": Absent(float)}
_LINE = {"step": Whole(), "split": str}
_MEASURED = ("train", "validation", "test", "rows")
_COUNTED = {"hit_rate": float, "evictions": float} | {f"sent_{kind}": float for kind in BYTE_KINDS}
_CALIBRATION = {
    "calibration_predicted": Absent([float]),
    "calibration_observed": Absent([float]),
    "calibration_count": Absent([Whole()]),
}
_RECLUSTERED = {"table": str, "entropies": [float]}
_WAY_OUT = "bring the file back, or start a new run with --out"


class RunLog:
    """The log of one run.

    Args:
        path: The file; made by the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin(b"")

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line; a crash can cut at most this line short."""
        text = _to_line(line)
        append_line(self.path, text)
        self._count(text.encode())

    def facts(self) -> dict[str, Any]:
        """Lines and bytes written, and their SHA-256."""
        return {
            "lines": self._num_lines,
            "bytes": self._num_bytes,
            "sha256": self._digest.hexdigest(),
        }

    def lines(self) -> list[dict[str, Any]]:
        """All complete lines."""
        found: list[dict[str, Any]] = []
        for number, line in enumerate(self._content().splitlines(keepends=True), start=1):
            try:
                found.append(_parse(line))
            except SchemaError as error:
                if not line.endswith(b"\n"):  # cut by a crash
                    break
                raise DataError(f"{self.path}, line {number}: {error}; {_WAY_OUT}") from None
        return found

    def truncate(self, step: int, facts: Mapping[str, Any] | None = None) -> None:
        """Drop what a resumed run will write again, and a line cut by a crash.

        Args:
            step: Where the run resumes.
            facts: What its checkpoint recorded of the log; without a record, lines of later steps
                are dropped.

        Raises:
            DataError: The log is not the one that the checkpoint was saved with.
        """
        content = self._content()
        if facts is None:
            lines = [line for line in self.lines() if line["step"] <= step]
            used = "".join(map(_to_line, lines)).encode()
        else:
            used = content[: facts["bytes"]]
            if flaw := self._flaw(used, facts):
                raise DataError(
                    f"{self.path} is not the log that the checkpoint of step {step} was saved "
                    f"with: {flaw}; bring the file back, remove that checkpoint to resume from the "
                    "one before it, or start a new run with --out"
                )
        if used != content or not self.path.exists():
            write_text_atomically(self.path, used.decode())
        self._begin(used)

    def clear(self) -> None:
        """Drop all lines."""
        write_text_atomically(self.path, "")
        self._begin(b"")

    def _flaw(self, used: bytes, facts: Mapping[str, Any]) -> str | None:
        if facts["bytes"] and not self.path.exists():
            return "it is missing"
        if len(used) < facts["bytes"]:
            return f"it has {len(used):,} bytes where {facts['bytes']:,} were written"
        if hashlib.sha256(used).hexdigest() != facts["sha256"]:
            return f"its first {facts['lines']:,} lines are not those written"
        return None

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise DataError(
                f"the log {self.path} cannot be read: {reason_of(error)}; make it a file that this "
                "user may read"
            ) from error

    def _begin(self, content: bytes) -> None:
        self._digest = hashlib.sha256()
        self._num_lines = self._num_bytes = 0
        self._count(content)

    def _count(self, content: bytes) -> None:
        self._digest.update(content)
        self._num_lines += content.count(b"\n")
        self._num_bytes += len(content)


def log_recorder(facts: Mapping[str, Any]) -> WriteFiles:
    """A writer of `RunLog.facts` into a checkpoint."""
    return lambda folder: {_RECORD: write_json(folder / _RECORD, facts)}


def read_log_record(checkpoint: Path) -> dict[str, Any] | None:
    """What a checkpoint recorded of the log; `None` if an older version wrote it."""
    files = read_manifest(checkpoint)
    if _RECORD not in files:
        return None
    require_whole(checkpoint / _RECORD, files[_RECORD])
    record: dict[str, Any] = read_verified(checkpoint / _RECORD, _FACTS)
    return {name: record[name] for name in _FACTS if name in record}


def _parse(line: bytes) -> dict[str, Any]:
    """Check the members of a line that readers of the log rely on."""
    found: dict[str, Any] = parse_json(line, _LINE)
    if found["split"] in _MEASURED:
        check(found, _CALIBRATION)
        others = {name: v for name, v in found.items() if name not in ("split", *_CALIBRATION)}
        check(others, Each(OneOf(None, float)))
        check(found, _COUNTED if "sent_rows" in found else {})
    elif found["split"] == "recluster":
        check(found, _RECLUSTERED)
    return found


def _to_line(line: Mapping[str, Any]) -> str:
    """One JSON object; a non-finite metric is null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in line.items()
    }
    return json.dumps(finite) + "\n"
