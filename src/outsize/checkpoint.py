"""Atomic, verified checkpoints, written by all ranks together.

A checkpoint is a folder that holds a tree of tensors and plain values (numbers, strings, lists,
dicts): `state.safetensors` has all tensors and `state.json` the tree, in which tensors are replaced
by their names. Ranks may add their own files (see `outsize.rank_files`). The folder is complete or
absent, and verified when it is read (`outsize.verified_folders`). Nothing is ever pickled or
unpickled.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from outsize.errors import CheckpointError
from outsize.files import SAFETENSORS_TYPES, reason_of, write_json, write_tensors
from outsize.json_files import Each, SchemaError
from outsize.ranks.collectives import rank, value_of_first
from outsize.ranks.failures import failing_together
from outsize.verified_folders import (
    STEP_FOLDER,
    WriteFiles,
    damaged,
    open_tensors,
    read_manifest,
    read_verified,
    require_whole,
    unreadable,
    write_together,
)

_TENSOR_KEY = "__tensor__"
_LEFTOVER = re.compile(r"step-[0-9]{10}(?:-[0-9]+)?\.partial")


def save_checkpoint(
    root: Path,
    step: int,
    state: Mapping[str, Any],
    keep: int = 3,
    write_more: WriteFiles = lambda folder: {},
    again: bool = False,
    protected_step: float | None = None,
) -> Path:
    """Write `root/step-…` atomically, then remove all but the newest `keep`; call it on all ranks.

    A step that has been saved is not written again, unless `again` is set: then `step-…-2` follows.

    Args:
        root: The folder of a run's checkpoints; created if missing. All ranks must see it.
        step: The step the state belongs to.
        state: A tree of dicts (with string keys), lists, tensors and plain values; the first
            rank's tree is written.
        keep: Number of checkpoints to keep, at least 1.
        write_more: Writes additional files of this rank, as in `write_together`.
        again: Whether the state has changed since the step was saved.
        protected_step: A step whose checkpoints are not removed, however old.
    """
    final = root / f"step-{step:010d}"
    names = [path.name for path in list_checkpoints(root) if step_of(path) == step]
    saved: str | None = value_of_first(names[-1] if names else None)
    if saved is not None:
        if not again:  # the run was stopped right after it had saved
            return root / saved
        last = STEP_FOLDER.fullmatch(saved)
        assert last is not None
        final = root / f"{final.name}-{int(last[2] or 1) + 1}"
    tensors: dict[str, Tensor] = {}
    skeleton = _extract_tensors(state, "", tensors)

    def write(folder: Path) -> Mapping[str, Mapping[str, Any]]:
        files = dict(write_more(folder))
        if rank() == 0:
            files["state.safetensors"] = write_tensors(folder / "state.safetensors", tensors)
            files["state.json"] = write_json(folder / "state.json", skeleton)
        return files

    if rank() == 0:
        shutil.rmtree(final.with_name(f"{final.name}.partial"), ignore_errors=True)
    write_together(final, write, "earlier checkpoints are untouched: free disk space and resume")
    with failing_together(CheckpointError):
        if rank() == 0:
            old = list_checkpoints(root)[:-keep]
            _remove([path for path in old if step_of(path) != protected_step])
    return final


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint of a run belongs to, by its name."""
    return _sort_key(checkpoint)[0]


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's state to the CPU, after verifying the checksums of its files."""
    names = ("state.safetensors", "state.json")
    files = read_manifest(folder, *names, *_files_in(folder))
    for name in names:
        require_whole(folder / name, files[name])
    skeleton = read_verified(folder / "state.json", Each(object))
    with open_tensors(folder / "state.safetensors") as tensors:
        unread = set(tensors.keys())
        try:
            restored: dict[str, Any] = _restore_tensors(skeleton, "", tensors, unread)
            if unread:
                raise SchemaError(f"it has no place for {min(unread)!r} of state.safetensors")
        except SchemaError as error:
            raise damaged(folder / "state.json", str(error)) from None
        except RecursionError:
            raise damaged(folder / "state.json", "it is nested too deeply") from None
    return restored


def read_plain_state(folder: Path) -> dict[str, Any]:
    """Read the plain values of a checkpoint's state; tensors are left as references by name."""
    files = read_manifest(folder, "state.json")
    require_whole(folder / "state.json", files["state.json"])
    state: dict[str, Any] = read_verified(folder / "state.json", Each(object))
    return state


def _files_in(folder: Path) -> list[str]:
    """The files in a folder that its manifest must list: all safetensors and JSON files."""
    try:
        names = {path.name for path in folder.iterdir() if path.suffix in (".safetensors", ".json")}
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(names - {"manifest.json"})


def list_checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return _list_matching(root, STEP_FOLDER)


def latest_checkpoint(root: Path) -> Path | None:
    """The newest complete checkpoint; what a crash left behind is removed. Call it on all ranks.

    The first rank lists and removes folders; the others receive its result.
    """
    found: list[Path] = []
    with failing_together(CheckpointError):
        if rank() == 0:
            for leftover in _list_matching(root, _LEFTOVER):
                shutil.rmtree(leftover, ignore_errors=True)
            found = list_checkpoints(root)
    newest = value_of_first(found[-1].name if found else None)
    return None if newest is None else root / newest


def remove_checkpoints(root: Path) -> None:
    """Remove a run's checkpoints, what a crash left behind, and their folder if it is then empty.

    Files that cannot be removed are left in place.
    """
    for path in [*list_checkpoints(root), *_list_matching(root, _LEFTOVER)]:
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        root.rmdir()


def _sort_key(path: Path) -> list[int]:
    """Sort key: by step, then by how often that step was saved."""
    return [int(number) for number in re.findall(r"[0-9]+", path.name)]


def _list_matching(root: Path, name: re.Pattern[str]) -> list[Path]:
    """The paths in a folder whose names match a pattern, sorted; empty if there is no folder."""
    try:
        found = (path for path in root.iterdir() if name.fullmatch(path.name))
        return sorted(found, key=_sort_key)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"the checkpoints in {root} cannot be read: {reason_of(error)}; make it a folder that "
            "this user may read"
        ) from error


def _remove(old: list[Path]) -> None:
    """Remove checkpoints; at any moment each is either complete or absent."""
    for path in old:
        try:
            leftover = path.rename(path.with_name(f"{path.name}.partial"))
        except OSError as error:
            raise CheckpointError(
                f"could not remove the old checkpoint {path}: {reason_of(error)}; "
                "remove it, and resume"
            ) from error
        shutil.rmtree(leftover, ignore_errors=True)


def _extract_tensors(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Replace the tensors of a tree by their names, and collect them in `tensors`."""
    if isinstance(node, Tensor):
        if node.dtype not in SAFETENSORS_TYPES:
            raise TypeError(f"a checkpoint cannot hold tensors of {node.dtype} (at {path!r})")
        tensors[path] = node.detach()
        return {_TENSOR_KEY: path}
    if isinstance(node, Mapping):
        for key in node:
            if not isinstance(key, str):
                raise TypeError(f"checkpoint keys must be strings, but {path!r} has {key!r}")
            if key == _TENSOR_KEY:
                raise TypeError(f"the key {key!r} (at {path!r}) is reserved for checkpoints")
        return {
            key: _extract_tensors(value, f"{path}/{escape(key)}", tensors)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_extract_tensors(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__} (at {path!r})")


def escape(key: str) -> str:
    """Escape a key for use in a path, so that different keys give different paths (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _restore_tensors(node: Any, path: str, tensors: Any, unread: set[str]) -> Any:
    """Put tensors back into a tree; the name of each must be its path, as when it was written."""
    if isinstance(node, dict):
        if _TENSOR_KEY in node:
            if node != {_TENSOR_KEY: path} or path not in unread:
                raise SchemaError(f"it refers at {path!r} to a tensor that does not belong there")
            unread.remove(path)
            return tensors.get_tensor(path)
        return {
            key: _restore_tensors(value, f"{path}/{escape(key)}", tensors, unread)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [
            _restore_tensors(value, f"{path}/{i}", tensors, unread) for i, value in enumerate(node)
        ]
    return node
