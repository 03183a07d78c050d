"""Saving and loading negative caches: one file per rank, readable on any number of ranks.

`cache-00001-of-00004.safetensors` holds the items of rank 1 of 4, in the order of its rows, and in
its header (`cache`, as JSON) the counters of that rank. On loading, a rank looks for the keys it
owns in all files. If the number of ranks is unchanged, it reads only its own file.
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
from outsize.ranks.collectives import gather_values, rank, world_size
from outsize.ranks.failures import failing_together
from outsize.verified_folders import damaged, open_tensors, read_manifest

_FORMAT = 1
_NAME = re.compile(r"cache-(\d{5})-of-(\d{5})\.safetensors")
_COUNTERS = ("clock", "num_pushes", "num_draws", "num_pushed", "seed")
_MISSING = {"num_pushed": UNKNOWN_PUSHED}  # defaults for older files
_HEADER = {
    "num_shards": Whole(1),
    "num_items": Whole(),
    "counters": dict.fromkeys(_COUNTERS, Whole())
    | dict.fromkeys(_MISSING, Absent(Whole()))
    | {"seed": Whole(-(1 << 63))},
}


def save_cache(cache: ItemCache, folder: str | Path) -> None:
    """Save a cache into a new folder, which is complete or absent. All ranks call it.

    Args:
        cache: The cache to save.
        folder: A new or empty folder, the same for all ranks.
    """
    final = require_new_folder(folder, "the cache")
    write_folder(final, lambda partial: write_cache(cache, partial))


def write_cache(cache: ItemCache, folder: Path) -> dict[str, dict[str, Any]]:
    """Write this rank's items into a checkpoint folder; returns the file's size and SHA-256."""
    index, count = _file_number(cache)
    tensors = {
        name: tensor[: cache.num_held_here].detach()
        for name, tensor in cache.tensors_here().items()
    }
    for name, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_TYPES:
            raise ConfigError(f"a cache whose {name} is {tensor.dtype} cannot be saved")
    header = {
        "format": _FORMAT,
        "num_shards": cache.shard.count,
        "num_items": cache.num_held_here,
        "counters": dict(zip(_COUNTERS, cache.counters(), strict=True)),
    }
    metadata = {"cache": json.dumps(header)}
    return write_rank_file(folder, rank_file("cache", index, count), tensors, metadata)


@torch.no_grad()
def load_cache(cache: ItemCache, folder: str | Path) -> int:
    """Load a cache that any number of ranks saved. All ranks call it.

    Every file is verified before anything changes. On the same number of ranks, the cache continues
    exactly, draws included. On another number, each item moves to its new owner with its age and
    its place in the eviction order, and draws are new. If items do not fit, those next in the
    eviction order are dropped.

    Args:
        cache: A cache of the same width, precision and features. Its items are replaced.
        folder: A folder that `save_cache` wrote, or a checkpoint that `write_cache` wrote into.

    Returns:
        The number of items dropped, over all ranks.
    """
    folder = Path(folder)
    with failing_together(CheckpointError):
        paths, is_same_layout = _needed_files(cache, folder)
        headers = [_read_header(path, cache) for path in paths]
        chosen, num_dropped = _choose_rows(cache, paths)
    num_held = 0
    for path, saved_rows in zip(paths, chosen, strict=True):
        rows = torch.arange(num_held, num_held + len(saved_rows), device=cache.device)
        with open_tensors(path) as tensors:
            for name, target in cache.tensors_here().items():
                copy_lines(tensors.get_slice(name), saved_rows, target, rows)
        num_held += len(saved_rows)
    saved = [{**_MISSING, **header["counters"]} for header in headers]
    counters = [max(each[name] for each in saved) for name in _COUNTERS]
    cache.resume(num_held, counters if is_same_layout else [*counters[:-1], cache.counters()[-1]])
    return sum(gather_values(num_dropped))


def _needed_files(cache: ItemCache, folder: Path) -> tuple[list[Path], bool]:
    """The files that may hold items of this rank, verified, and whether the ranks are unchanged."""
    files = read_manifest(folder)
    names = sorted(name for name in files if _NAME.fullmatch(name))
    if not names:
        raise CheckpointError(f"{folder} holds no negative cache: choose another folder")
    count = int(names[0].split("-")[-1].split(".")[0])
    if names != [rank_file("cache", index, count) for index in range(count)]:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: of the {count} files of a negative cache it lists "
            f"{len(names)}; save it again"
        )
    num_shards = _read_header(verified_rank_file(folder, names[0], files), cache)["num_shards"]
    index, num_ranks = _file_number(cache)
    is_same_layout = (num_shards, count) == (cache.shard.count, num_ranks)
    if not is_same_layout and num_shards != count:
        raise CheckpointError(
            f"{folder} holds {count} separate negative caches, one per rank, but there are "
            f"{num_ranks} ranks: load them on {count} ranks"
        )
    needed = [names[index]] if is_same_layout else names
    return [verified_rank_file(folder, name, files) for name in needed], is_same_layout


def _read_header(path: Path, cache: ItemCache) -> dict[str, Any]:
    """The header of a file; raises if the file's tensors do not fit the cache."""
    with open_tensors(path) as tensors:
        header = _parse_header(path, (tensors.metadata() or {}).get("cache", ""))
        slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
        for name, saved_slice in slices.items():
            num_items = header["num_items"]
            if saved_slice.get_shape()[:1] != [num_items]:
                raise damaged(path, f"{name} does not have the {num_items:,} items of its header")
        saved = {n: (s.get_dtype(), tuple(s.get_shape()[1:])) for n, s in slices.items()}
    here = {
        name: (SAFETENSORS_TYPES.get(tensor.dtype), tuple(tensor.shape[1:]))
        for name, tensor in cache.tensors_here().items()
    }
    for name in sorted(here.keys() | saved.keys()):
        if here.get(name) != saved.get(name):
            raise CheckpointError(
                f"{path.parent} holds a negative cache whose {name} {_describe(saved.get(name))}, "
                f"but here it {_describe(here.get(name))}: build the cache as it was saved"
            )
    return header


def _parse_header(path: Path, text: str) -> dict[str, Any]:
    """Parse and check the JSON header of a file."""
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
            f"{path} is not a file of a negative cache: save it again (its header: {error})"
        ) from None
    return header


def _choose_rows(cache: ItemCache, paths: Sequence[Path]) -> tuple[list[Int64[Tensor, " _"]], int]:
    """The rows of each file that this rank loads, and how many items do not fit."""
    found: list[Tensor] = []
    stamps: list[Tensor] = []
    for path in paths:
        with open_tensors(path) as tensors:
            is_own = tensors.get_tensor("keys") % cache.shard.count == cache.shard.index
            found.append(is_own.nonzero().flatten())
            stamps.append(tensors.get_tensor("stamps")[is_own])
    sizes = [len(rows) for rows in found]
    num_dropped = max(0, sum(sizes) - cache.num_items_here)
    fits = torch.ones(sum(sizes), dtype=torch.bool)
    fits[torch.cat(stamps).argsort(stable=True)[:num_dropped]] = False
    flags = fits.split(sizes)
    return [rows[flag] for rows, flag in zip(found, flags, strict=True)], num_dropped


def _file_number(cache: ItemCache) -> tuple[int, int]:
    """The index of this rank's file, and the number of files.

    Several ranks may also have a separate cache each; then there is one file per rank.
    """
    if cache.shard.count > 1:
        return cache.shard.index, cache.shard.count
    return rank(), world_size()


def _describe(kind: tuple[str | None, tuple[int, ...]] | None) -> str:
    if kind is None:
        return "is absent"
    dtype, shape = kind
    return f"is {dtype} of shape {shape} per item"
