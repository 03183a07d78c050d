"""`rows.json`: the sizes of saved tables and the rows of each rank, checked before use.

The shares of the ranks must cover every table without overlap or gap. A file of rows must hold
exactly the tensors in the index, with their types and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outsize.checkpoint import escape
from outsize.files import SAFETENSORS_TYPES
from outsize.json_files import Each, OneOf, Whole
from outsize.verified_folders import damaged, open_tensors, read_verified, require_whole

INDEX = "rows.json"
_SHARE = {"first": Whole(), "every": Whole(1), "num_rows": Whole()}
_SCHEMA = {
    "num_ranks": Whole(1),
    "tables": Each({"num_rows": Whole(), "tensors": Each([OneOf(str, Whole())])}),
    "ranks": [{"tables": Each(_SHARE), "state": [str]}],
}
_TYPES = {str(dtype).removeprefix("torch."): name for dtype, name in SAFETENSORS_TYPES.items()}


def read_index(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Read and check the index of saved rows; `files` are those in the checkpoint's manifest."""
    path = folder / INDEX
    require_whole(path, files[INDEX])
    index: dict[str, Any] = read_verified(path, _SCHEMA)
    if len(index["ranks"]) != index["num_ranks"]:
        fact = f"it lists {len(index['ranks'])} ranks, but num_ranks is {index['num_ranks']}"
        raise damaged(path, fact)
    for table, facts in index["tables"].items():
        shares = [r["tables"][table] for r in index["ranks"] if table in r["tables"]]
        if not _is_partition([rows_of(share) for share in shares], facts["num_rows"]):
            raise damaged(path, f"its ranks do not cover the rows of table {table!r} once each")
        for name, kind in facts["tensors"].items():
            if not kind or kind[0] not in _TYPES or any(isinstance(n, str) for n in kind[1:]):
                raise damaged(path, f"{name} of table {table!r} has no type and shape in it")
    for saved in index["ranks"]:
        if unknown := sorted(saved["tables"].keys() - index["tables"].keys()):
            raise damaged(path, f"it does not list table {unknown[0]!r}, which a rank saved")
    return index


def require_matches_index(path: Path, index: Mapping[str, Any], source: int) -> None:
    """Raise unless the file of the rank `source` holds exactly the tensors in the index."""
    saved = index["ranks"][source]
    expected: dict[str, tuple[str, list[int]] | None] = {
        tensor_name(table, name): (_TYPES[kind[0]], [share["num_rows"], *kind[1:]])
        for table, share in saved["tables"].items()
        for name, kind in index["tables"][table]["tensors"].items()
    }
    expected |= {rank_name(name): None for name in saved["state"]}
    with open_tensors(path) as tensors:
        names = set(tensors.keys())
        for name in sorted(names | expected.keys()):
            if name not in names or name not in expected:
                raise damaged(path, f"it and {INDEX} disagree about {name!r}")
            found = tensors.get_slice(name)
            if expected[name] not in (None, (found.get_dtype(), found.get_shape())):
                raise damaged(path, f"{name!r} does not have the type and shape in {INDEX}")


def rows_of(share: Mapping[str, int]) -> range:
    """The rows of a table that a rank has."""
    first, every = share["first"], share["every"]
    return range(first, first + every * share["num_rows"], every)


def common_rows(one: range, other: range) -> range:
    """The rows in both of two ascending ranges."""
    skipped = max(0, -(-(one.start - other.start) // other.step))
    for row in other[skipped : skipped + one.step]:
        if row in one:
            return range(row, min(one.stop, other.stop), math.lcm(one.step, other.step))
    return range(0)


def tensor_name(table: str, tensor: str) -> str:
    """The name of a table's tensor in a file of rows."""
    return f"{escape(table)}/{tensor}"


def rank_name(name: str) -> str:
    """The name of a tensor of the rank's own state in a file of rows."""
    return f"/rank/{escape(name)}"


def _is_partition(shares: Sequence[range], num_rows: int) -> bool:
    """Whether every row of a table is in exactly one of several ranges."""
    shares = [rows for rows in shares if rows.start < rows.stop]
    sizes = [(rows.stop - rows.start) // rows.step for rows in shares]
    if sum(sizes) != num_rows or any(rows[-1] >= num_rows for rows in shares):
        return False
    if len({rows.step for rows in shares}) <= 1:
        return len({rows.start % rows.step for rows in shares}) == len(shares)
    return not any(common_rows(one, other) for i, one in enumerate(shares) for other in shares[:i])
