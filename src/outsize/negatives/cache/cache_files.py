"""Negative caches as files: each rank writes the items it keeps, any number of ranks reads them.

`cache-00001-of-00004.safetensors` holds the items of rank 1 of 4, a line each in the order of its
rows, and in its header (`cache`, as JSON) where that rank stood. A rank that loads looks for the
keys it owns in all files; where as many ranks saved as load, its own file has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from outsize.checkpoint import damaged, open_tensors, read_manifest
from outsize.errors import CheckpointError, ConfigError
from outsize.files import SAFETENSORS_TYPES
from outsize.json_files import Absent, OneOf, SchemaError, Whole, check, parse_json
from outsize.negatives.cache.contract import UNKNOWN_PUSHED, ItemCache
from outsize.rank_files import (
    copy_lines,
    rank_file,
    require_new_folder,
    verified_rank_file,
    write_folder,
    write_rank_file,
)
from outsize.ranks.collectives import failing_together, gather_values, rank, world_size

_FORMAT = 1
_NAME = re.compile(r"cache-(\d{5})-of-(\d{5})\.safetensors")
_COUNTERS = ("clock", "num_pushes", "num_draws", "num_pushed", "seed")
_MISSING = {"num_pushed": UNKNOWN_PUSHED}  # what older files do not say
_HEADER = {
    "num_shards": Whole(1),
    "num_items": Whole(),
    "counters": dict.fromkeys(_COUNTERS, Whole())
    | dict.fromkeys(_MISSING, Absent(Whole()))
    | {"seed": Whole(-(1 << 63))},
}


def save_cache(cache: ItemCache, folder: str | Path) -> None:
    """Write a cache into a folder of its own, complete or absent; entered by all ranks.

    Args:
        cache: What to write.
        folder: Where to; new, or empty, and the same folder for all ranks.
    """
    final = require_new_folder(folder, "the cache")
    write_folder(final, lambda partial: write_cache(cache, partial))


def write_cache(cache: ItemCache, folder: Path) -> dict[str, dict[str, Any]]:
    """Write this rank's items into a checkpoint, and say the size and SHA-256 of the file."""
    index, count = _place(cache)
    tensors = {
        name: lines[: cache.num_held_here].detach() for name, lines in cache.tensors_here().items()
    }
    for name, lines in tensors.items():
        if lines.dtype not in SAFETENSORS_TYPES:
            raise ConfigError(f"a cache whose {name} is of {lines.dtype} cannot be saved")
    header = {
        "format": _FORMAT,
        "num_shards": cache.shard.count,
        "num_items": cache.num_held_here,
        "counters": dict(zip(_COUNTERS, cache.counters(), strict=True)),
    }
    metadata = {"cache": json.dumps(header)}
    return write_rank_file(folder, _file_name(index, count), tensors, metadata)


@torch.no_grad()
def load_cache(cache: ItemCache, folder: str | Path) -> int:
    """Bring back what any number of ranks saved; entered by all ranks.

    Every file is verified before anything is changed. With as many ranks as saved it, a cache goes
    on as it would have, draws included. With more or fewer, every item comes to the rank that owns
    it now, with its age and its turn to be displaced, and draws are new. Where there is less room
    than items, those that would be displaced first are left out.

    Args:
        cache: Where to; of the same width, precision and features. What it holds is forgotten.
        folder: What `save_cache` wrote, or a checkpoint that `write_cache` wrote into.

    Returns:
        How many items were left out, by all ranks together.
    """
    folder = Path(folder)
    with failing_together(CheckpointError):
        paths, goes_on = _needed_files(cache, folder)
        headers = [_read_header(path, cache) for path in paths]
        chosen, num_left_out = _choose_lines(cache, paths)
    num_held = 0
    for path, lines in zip(paths, chosen, strict=True):
        rows = torch.arange(num_held, num_held + len(lines), device=cache.device)
        with open_tensors(path) as tensors:
            for name, target in cache.tensors_here().items():
                copy_lines(tensors.get_slice(name), lines, target, rows)
        num_held += len(lines)
    saved = [{**_MISSING, **header["counters"]} for header in headers]
    counters = [max(each[name] for each in saved) for name in _COUNTERS]
    cache.resume(num_held, counters if goes_on else [*counters[:-1], cache.counters()[-1]])
    return sum(gather_values(num_left_out))


def _needed_files(cache: ItemCache, folder: Path) -> tuple[list[Path], bool]:
    """The files that may have items for this rank, verified; whether it was this rank's own."""
    files = read_manifest(folder)
    names = sorted(name for name in files if _NAME.fullmatch(name))
    if not names:
        raise CheckpointError(f"{folder} holds no negative cache: choose another folder")
    count = int(names[0].split("-")[-1].split(".")[0])
    if names != [_file_name(index, count) for index in range(count)]:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: of the {count} files of a negative cache it lists "
            f"{len(names)}; save it anew"
        )
    num_shards = _read_header(verified_rank_file(folder, names[0], files), cache)["num_shards"]
    index, num_ranks = _place(cache)
    goes_on = (num_shards, count) == (cache.shard.count, num_ranks)
    if not goes_on and num_shards != count:
        raise CheckpointError(
            f"{folder} holds negative caches that {count} ranks kept each for itself, but there "
            f"are {num_ranks} ranks: load them on {count}"
        )
    needed = [names[index]] if goes_on else names
    return [verified_rank_file(folder, name, files) for name in needed], goes_on


def _read_header(path: Path, cache: ItemCache) -> dict[str, Any]:
    """Where the rank stood that wrote a file; refuses one that holds another kind of items."""
    with open_tensors(path) as tensors:
        header = _parse_header(path, (tensors.metadata() or {}).get("cache", ""))
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        for name, lines in slices.items():
            if lines.get_shape()[:1] != [header["num_items"]]:
                raise damaged(path, f"{name} has not the {header['num_items']:,} lines it tells of")
        saved = {n: (s.get_dtype(), tuple(s.get_shape()[1:])) for n, s in slices.items()}
    here = {
        name: (SAFETENSORS_TYPES.get(lines.dtype), tuple(lines.shape[1:]))
        for name, lines in cache.tensors_here().items()
    }
    for name in sorted(here.keys() | saved.keys()):
        if here.get(name) != saved.get(name):
            raise CheckpointError(
                f"{path.parent} holds a negative cache whose {name} {_in_words(saved.get(name))}, "
                f"but here it {_in_words(here.get(name))}: make the cache as it was saved"
            )
    return header


def _parse_header(path: Path, text: str) -> dict[str, Any]:
    """The JSON in the header of a file."""
    try:
        header: dict[str, Any] = parse_json(text, {"format": OneOf(int, str)})
        found = header["format"]
        if found != _FORMAT:
            raise CheckpointError(
                f"{path} has format {found}, but this version reads format {_FORMAT}: load it with "
                "the version that wrote it"
            )
        check(header, _HEADER)
    except SchemaError as error:
        raise CheckpointError(
            f"{path} is no file of a negative cache: save it anew (its header: {error})"
        ) from None
    return header


def _choose_lines(cache: ItemCache, paths: Sequence[Path]) -> tuple[list[Int64[Tensor, " _"]], int]:
    """For each file the lines of items that are kept here, and how many there is no room for."""
    found: list[Tensor] = []
    stamps: list[Tensor] = []
    for path in paths:
        with open_tensors(path) as tensors:
            is_own = tensors.get_tensor("keys") % cache.shard.count == cache.shard.index
            found.append(is_own.nonzero().flatten())
            stamps.append(tensors.get_tensor("stamps")[is_own])
    sizes = [len(lines) for lines in found]
    num_left_out = max(0, sum(sizes) - cache.num_items_here)
    stays = torch.ones(sum(sizes), dtype=torch.bool)
    stays[torch.cat(stamps).argsort(stable=True)[:num_left_out]] = False
    flags = stays.split(sizes)
    return [lines[flag] for lines, flag in zip(found, flags, strict=True)], num_left_out


def _place(cache: ItemCache) -> tuple[int, int]:
    """Which of how many files this rank writes; ranks may also keep a cache each for itself."""
    if cache.shard.count > 1:
        return cache.shard.index, cache.shard.count
    return rank(), world_size()


def _in_words(kind: tuple[str | None, tuple[int, ...]] | None) -> str:
    if kind is None:
        return "is absent"
    dtype, shape = kind
    return f"is {dtype} of shape {shape} an item"


def _file_name(index: int, count: int) -> str:
    return rank_file("cache", index, count)
