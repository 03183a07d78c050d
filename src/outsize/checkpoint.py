"""Checkpoints: folders that are complete or absent, verified before they are believed.

A checkpoint is a tree of tensors and plain values (numbers, strings, lists, dicts), written as
`state.safetensors` (every tensor) and `state.json` (the tree with tensors by name), with
`manifest.json` holding the size and SHA-256 of both. The folder is written under another name,
synced and renamed, so a crash at any moment leaves either the whole checkpoint or none of it.
Nothing is pickled, and nothing that was pickled is ever read.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from outsize.errors import CheckpointError
from outsize.files import (
    SAFETENSORS_TYPES,
    flaw_of,
    reason_of,
    whole_folder,
    write_json,
    write_tensors,
)

FORMAT = 1
_TENSOR_KEY = "__tensor__"
_STEP_FOLDER = re.compile(r"step-(\d{10})")


def save_checkpoint(root: Path, step: int, state: Mapping[str, Any], keep: int = 3) -> Path:
    """Write `root/step-…` atomically, then remove all but the newest `keep`.

    Args:
        root: The folder that holds a run's checkpoints; made if need be.
        step: The step the state belongs to.
        state: A tree of dicts (with string keys), lists, tensors and plain values.
        keep: How many checkpoints to keep, at least 1.
    """
    final = root / f"step-{step:010d}"
    if final.exists():  # a run stopped where it had just saved
        return final
    tensors: dict[str, Tensor] = {}
    skeleton = _take_tensors(state, "", tensors)
    try:
        with whole_folder(final, root / f"{final.name}.partial") as partial:
            files = {
                "state.safetensors": write_tensors(partial / "state.safetensors", tensors),
                "state.json": write_json(partial / "state.json", skeleton),
            }
            write_json(partial / "manifest.json", {"format": FORMAT, "files": files})
    except OSError as error:
        raise CheckpointError(
            f"could not write checkpoint {final}: {reason_of(error)}; "
            "earlier checkpoints are untouched: make room and resume"
        ) from error
    for old in list_checkpoints(root)[:-keep]:
        leftover = old.rename(old.with_name(f"{old.name}.partial"))  # whole or absent, even now
        shutil.rmtree(leftover, ignore_errors=True)
    return final


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a checkpoint back, on the CPU, after verifying every byte of it."""
    manifest = _read_manifest(folder)
    for name, facts in manifest["files"].items():
        if flaw := flaw_of(folder / name, facts):
            raise _damaged(folder / name, flaw)
    from safetensors import SafetensorError, safe_open

    skeleton = json.loads((folder / "state.json").read_text("utf-8"))
    path = folder / "state.safetensors"
    try:
        with safe_open(path, framework="pt", device="cpu") as tensors:
            restored = _put_tensors(skeleton, tensors)
    except SafetensorError as error:
        raise _damaged(path, f"it is no safetensors file ({error})") from None
    assert isinstance(restored, dict)
    return restored


def list_checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _STEP_FOLDER.fullmatch(path.name))


def latest_checkpoint(root: Path) -> Path | None:
    """The newest complete checkpoint; leftovers of a crash are removed."""
    if root.is_dir():
        for leftover in root.glob("step-*.partial"):
            shutil.rmtree(leftover, ignore_errors=True)
    found = list_checkpoints(root)
    return found[-1] if found else None


def _take_tensors(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors in a tree by their names, collecting them."""
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
            key: _take_tensors(value, f"{path}/{_escape(key)}", tensors)
            for key, value in node.items()
        }
    if isinstance(node, list | tuple):
        return [_take_tensors(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__} (at {path!r})")


def _escape(key: str) -> str:
    """A key as a part of a path, so that no two paths are the same (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


def _put_tensors(node: Any, tensors: Any) -> Any:
    if isinstance(node, dict):
        if set(node) == {_TENSOR_KEY}:
            return tensors.get_tensor(node[_TENSOR_KEY])
        return {key: _put_tensors(value, tensors) for key, value in node.items()}
    if isinstance(node, list):
        return [_put_tensors(value, tensors) for value in node]
    return node


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text("utf-8"))
        found = manifest["format"]
        _ = [(facts["bytes"], facts["sha256"]) for facts in manifest["files"].values()]
        _ = [manifest["files"][name] for name in ("state.safetensors", "state.json")]
    except FileNotFoundError:
        if folder.is_dir():
            raise _damaged(path, "it is missing") from None
        raise CheckpointError(f"{folder} is no checkpoint: there is no such folder") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path, "it cannot be read as a manifest") from None
    if found != FORMAT:
        raise CheckpointError(
            f"checkpoint {folder} has format {found}, but this version reads format {FORMAT}: "
            "resume with the version that wrote it, or start a new run"
        )
    assert isinstance(manifest, dict)
    return manifest


def _damaged(path: Path, fact: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path.parent} is damaged: {path.name}: {fact}; "
        "remove this folder to resume from the one before it"
    )
