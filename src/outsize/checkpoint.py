"""Atomic, verified checkpoints, written by all ranks together.

A checkpoint is a folder that holds a tree of tensors and plain values (numbers, strings, lists,
dicts): `state.safetensors` has all tensors and `state.json` the tree, in which tensors are replaced
by their names. Ranks may add their own files (see `outsize.rank_files`). `manifest.json` lists the
size and SHA-256 of every file. All ranks write to a temporary folder, which is synced and renamed,
so a crash at any moment leaves either the complete checkpoint or none. Nothing is ever pickled or
unpickled.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from outsize.errors import CheckpointError
from outsize.files import (
    SAFETENSORS_TYPES,
    finish_partial,
    flaw_of,
    make_partial,
    reason_of,
    write_json,
    write_tensors,
)
from outsize.json_files import FILE_FACTS, Each, OneOf, SchemaError, check, read_json
from outsize.ranks.collectives import gather_values, rank, value_of_first
from outsize.ranks.failures import failing_together

FORMAT = 2
WriteFiles = Callable[[Path], Mapping[str, Mapping[str, Any]]]
_TENSOR_KEY = "__tensor__"
_STEP_FOLDER = re.compile(r"step-([0-9]{10})(?:-([0-9]+))?")
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
        last = _STEP_FOLDER.fullmatch(saved)
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
        raise _unreadable(folder, error) from error
    return sorted(names - {"manifest.json"})


def list_checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return _list_matching(root, _STEP_FOLDER)


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


def write_together(final: Path, write: WriteFiles, way_out: str) -> None:
    """Write a folder and its manifest atomically; call it on all ranks.

    If any rank cannot write, all raise a `CheckpointError`.

    Args:
        final: Must not exist, or be an empty folder, and be the same folder for all ranks.
        write: Writes this rank's files into the given folder, and returns the size and SHA-256 of
            each by name.
        way_out: The last part of the error message: what to do if the disk is full.
    """
    partial = final.with_name(f"{final.name}.partial")
    with _writing(final, way_out):
        if rank() == 0:
            if _LEFTOVER.fullmatch(partial.name):
                shutil.rmtree(partial, ignore_errors=True)
            make_partial(partial)
    try:
        with _writing(final, way_out):
            if not partial.is_dir():
                raise OSError("rank 0 has made it, and this rank does not see it: share a disk")
            mine = write(partial)
        files = {name: facts for part in gather_values(mine) for name, facts in part.items()}
        with _writing(final, way_out):
            if rank() == 0:
                write_json(partial / "manifest.json", {"format": FORMAT, "files": files})
                finish_partial(partial, final)
    except BaseException:
        if rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _writing(final: Path, way_out: str) -> Iterator[None]:
    with failing_together(CheckpointError):
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"could not write checkpoint {final}: {reason_of(error)}; {way_out}"
            ) from error


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


def read_manifest(folder: Path, *needed: str) -> dict[str, dict[str, Any]]:
    """The files of a checkpoint with their size and SHA-256; raises if a needed one is missing."""
    path = folder / "manifest.json"
    try:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a checkpoint: there is no such folder")
    except OSError as error:
        raise _unreadable(folder, error) from error
    manifest = read_verified(path, {"format": OneOf(int, str)})
    found = manifest["format"]
    if found != FORMAT:
        raise CheckpointError(
            f"checkpoint {folder} has format {found}, but this version reads format {FORMAT}: "
            "resume with the version that wrote it, or start a new run"
        )
    try:
        check(manifest, {"files": Each(FILE_FACTS)})
    except SchemaError as error:
        raise damaged(path, str(error)) from None
    files: dict[str, dict[str, Any]] = manifest["files"]
    for name in needed:
        if name not in files:
            raise damaged(path, f"it does not list {name}")
    return files


def require_whole(path: Path, facts: Mapping[str, Any]) -> None:
    """Raise a `CheckpointError` if a file's size or checksum is not the one written."""
    try:
        flaw = flaw_of(path, facts)
    except OSError as error:
        raise _unreadable(path.parent, error) from error
    if flaw:
        raise damaged(path, flaw)


def read_verified(path: Path, schema: Any) -> Any:
    """Read a JSON file of a checkpoint and check it against a schema."""
    try:
        return read_json(path, schema)
    except SchemaError as error:
        raise damaged(path, str(error)) from None
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except PermissionError as error:
        raise _unreadable(path.parent, error) from error
    except OSError as error:
        raise damaged(path, f"it cannot be read ({reason_of(error)})") from None


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file of a checkpoint with `safetensors.safe_open`, on the CPU."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            yield tensors
    except SafetensorError as error:
        raise damaged(path, f"it is not a safetensors file ({error})") from None


def damaged(path: Path, fact: str) -> CheckpointError:
    """The error for a file of a checkpoint that is not as it was written."""
    is_of_run = _STEP_FOLDER.fullmatch(path.parent.name)
    previous = "remove this folder to resume from the one before it"
    way_out = previous if is_of_run else "save it again"
    return CheckpointError(f"checkpoint {path.parent} is damaged: {path.name}: {fact}; {way_out}")


def _unreadable(folder: Path, error: OSError) -> CheckpointError:
    name = "" if error.filename is None else f"{Path(error.filename).name}: "
    return CheckpointError(
        f"checkpoint {folder} cannot be read: {name}{reason_of(error)}; let this user read it"
    )
