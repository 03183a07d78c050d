"""What the first pass learned, kept on disk for the case that the second is interrupted.

Each part of the first pass (id encoders, splitter, moments) has learned numbers and arrays, which
are its own attributes. They are written as `learned.npz`, then `learned.json` with the checksum of
that file, its source and a checksum of its own: one without the other, damaged, or of another
source, is not believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.encoding.manifest import BAD_ROWS
from outsize.data.encoding.sealed import read_sealed, sealed
from outsize.files import write_text_atomically
from outsize.json_files import Whole

_ARRAYS, _FACTS = "learned.npz", "learned.json"
FILES = (_ARRAYS, _FACTS)
_SCHEMA = {"sha256": str, "source": object, "facts": {"num_rows": Whole(), "bad": BAD_ROWS}}


def save_learned(
    folder: Path, parts: Mapping[str, object], facts: Mapping[str, Any], source: object
) -> None:
    """Write what parts have learned.

    Args:
        folder: Where to.
        parts: Name → object whose numbers and arrays are to be kept.
        facts: Plain values to keep with them.
        source: What it was learned from, as plain values.
    """
    arrays = {
        f"{part}/{name}": np.asarray(value)
        for part, owner in parts.items()
        for name, value in vars(owner).items()
        if isinstance(value, int | float | np.generic | np.ndarray)
    }
    with (folder / _ARRAYS).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    content = {"sha256": _checksum(folder / _ARRAYS), "source": source, "facts": dict(facts)}
    write_text_atomically(folder / _FACTS, sealed(content))


def load_learned(
    folder: Path, parts: Mapping[str, object], source: object
) -> dict[str, Any] | None:
    """Give parts what they had learned; returns the facts, or `None` where there is nothing to use.

    Args:
        folder: Where `save_learned` wrote.
        parts: The same parts, fresh.
        source: What they would learn from now.
    """
    try:
        content = read_sealed(folder / _FACTS, _SCHEMA)
        if content["source"] != source or content["sha256"] != _checksum(folder / _ARRAYS):
            return None
        with np.load(folder / _ARRAYS, allow_pickle=False) as arrays:
            learned = [(*key.rpartition("/")[::2], arrays[key]) for key in arrays]
    except (OSError, ValueError):
        return None
    if not all(part in parts for part, _, _ in learned):
        return None
    for part, name, value in learned:
        setattr(parts[part], name, value if value.ndim else value.item())
    facts: dict[str, Any] = content["facts"]
    return facts


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
