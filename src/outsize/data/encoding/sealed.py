"""Small JSON files that contain a checksum of their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outsize.json_files import SchemaError, read_json

_CHECKSUM = "checksum"


def sealed(content: Mapping[str, Any]) -> str:
    """An object as JSON, with a checksum of its members as an additional member."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}, indent=1)


def read_sealed(path: Path, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Read a file that `sealed` made and verify its checksum, which is not part of the result.

    A file without a checksum was written before checksums existed, and only has to match the
    schema.

    Raises:
        SchemaError: It is damaged; one line that does not name the file.
        OSError: It cannot be read.
    """
    content: dict[str, Any] = read_json(path, schema)
    written = content.pop(_CHECKSUM, None)
    if written is not None and written != _checksum(content):
        raise SchemaError("its checksum is not the one written")
    return content


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
