"""Folders with one file per rank: `rows-00001-of-00004.safetensors` is that of rank 1 of 4.

A folder is complete or absent (`outsize.verified_folders`), and its manifest has the
checksum of each file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.errors import CheckpointError, ConfigError
from outsize.files import write_tensors
from outsize.kernels.rows.lines import put_lines
from outsize.ranks.collectives import value_of_first
from outsize.verified_folders import WriteFiles, open_tensors, require_whole, write_together

_CHUNK_BYTES = 1 << 24


def rank_file(kind: str, index: int, count: int) -> str:
    """The name of the file of rank `index` of `count`."""
    return f"{kind}-{index:05d}-of-{count:05d}.safetensors"


def write_rank_file(
    folder: Path,
    name: str,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Write the file of one rank; return its name with its size and SHA-256."""
    return {name: write_tensors(folder / name, tensors, metadata)}


def verified_rank_file(folder: Path, name: str, files: Mapping[str, Any]) -> Path:
    """The path of a file of a checkpoint, after it is verified against the manifest's `files`."""
    if name not in files:
        raise CheckpointError(f"checkpoint {folder} does not list {name}")
    require_whole(folder / name, files[name])
    return folder / name


def require_new_folder(folder: str | Path, what: str) -> Path:
    """Resolve a folder for `what`; raise unless it is new or empty. All ranks call it."""
    final = Path(folder).resolve()
    if value_of_first(final.exists() and (not final.is_dir() or any(final.iterdir()))):
        raise ConfigError(f"{final} is not empty: choose another folder for {what}")
    return final


def write_folder(final: Path, write: WriteFiles) -> None:
    """Write a folder that is complete or absent; all ranks call it."""
    write_together(final, write, "nothing is left there: free some space and save again")


def read_tensors(path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read tensors from a file by name; by default all."""
    with open_tensors(path) as tensors:
        return {name: tensors.get_tensor(name) for name in names or tensors.keys()}


def copy_lines(
    source: Any,
    lines: range | Int64[Tensor, " n"],
    target: Tensor,
    rows: range | Int64[Tensor, " n"],
) -> None:
    """Copy lines of a `safetensors` slice to rows of a tensor, in chunks of bounded size.

    Lines are ascending, and so are rows if they are a range.
    """
    line_bytes = max(1, math.prod(target.shape[1:])) * target.element_size()
    for span, chosen, part in _spans(lines, max(1, _CHUNK_BYTES // line_bytes)):
        values: Tensor = source[span][chosen]
        if isinstance(rows, range):
            some = rows[part]
            target[some[0] : some[-1] + 1 : some.step].copy_(values)
        else:
            put_lines(target, rows[part], values.to(target.device))


def _spans(
    lines: range | Int64[Tensor, " n"], length: int
) -> Iterator[tuple[slice, slice | Tensor, slice]]:
    """Split `lines` into runs of a file of at most `length` lines.

    Yields:
        The run, the chosen lines within it, and their positions in `lines`.
    """
    if not len(lines):
        return
    first, last = int(lines[0]), int(lines[-1])
    for start in range(first, last + 1, length):
        stop = min(start + length, last + 1)
        if isinstance(lines, range):
            begin, end = (-(-(edge - first) // lines.step) for edge in (start, stop))
            if begin < end:
                chosen = slice(lines[begin] - start, None, lines.step)
                yield slice(start, stop), chosen, slice(begin, end)
        else:
            begin, end = torch.searchsorted(lines, torch.tensor([start, stop])).tolist()
            if begin < end:
                yield slice(start, stop), lines[begin:end] - start, slice(begin, end)
