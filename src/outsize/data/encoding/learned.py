"""The saved state of the first pass, for resuming if the second pass is interrupted.

Each part of the first pass (id encoders, splitter, moments) stores what it has learned as numbers
and arrays in its attributes. They are written to `learned.npz`. Then `learned.json` is written with
the checksum of that file, the source and a checksum of its own. If either file is missing, damaged
or of another source, both are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.encoding.manifest import BAD_ROWS
from outsize.files import sha256_of, write_text_atomically
from outsize.json_files import Whole, read_sealed, sealed

_ARRAYS, _FACTS = "learned.npz", "learned.json"
FILES = (_ARRAYS, _FACTS)
_SCHEMA = {"sha256": str, "source": object, "facts": {"num_rows": Whole(), "bad": BAD_ROWS}}


def save_learned(
    folder: Path, parts: Mapping[str, object], facts: Mapping[str, Any], source: object
) -> None:
    """Save the numbers and arrays of each part, with facts and the source as plain values."""
    arrays = {
        f"{part}/{name}": np.asarray(value)
        for part, owner in parts.items()
        for name, value in vars(owner).items()
        if isinstance(value, int | float | np.generic | np.ndarray)
    }
    with (folder / _ARRAYS).open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    content = {"sha256": sha256_of(folder / _ARRAYS), "source": source, "facts": dict(facts)}
    write_text_atomically(folder / _FACTS, sealed(content))


def load_learned(
    folder: Path, parts: Mapping[str, object], source: object
) -> dict[str, Any] | None:
    """Load what the parts had learned; returns the facts, or `None` if there is nothing valid.

    The parts are in their initial state, and `source` is the source now.
    """
    try:
        content = read_sealed(folder / _FACTS, _SCHEMA)
        if content["source"] != source or content["sha256"] != sha256_of(folder / _ARRAYS):
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
