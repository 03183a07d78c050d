"""The file of weights: finite, of the types and shapes that the model has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outsize.contracts import EmbeddingTable
from outsize.errors import ExportError
from outsize.export.format import WEIGHTS, disagree, unreadable
from outsize.export.tables import PREFIX

_CHUNK_NUMBERS = 1 << 24
_WIDENED = (torch.float16, torch.bfloat16)
"""Dtypes of dense weights that are loaded as float32, which represents them exactly."""


def require_finite(state: Mapping[str, Tensor]) -> None:
    """Raise an `ExportError` if any weight is NaN or infinite."""
    for name, weight in state.items():
        if not is_finite(weight):
            raise ExportError(
                f"{name!r} of the model holds NaN or infinite numbers, and so would its logits: "
                "train it again with a lower learning rate or train.clip_norm"
            )


@torch.no_grad()
def load_weights(model: nn.Module, folder: Path) -> None:
    """Load a model's weights; its tables may be on the meta device, and take the file's tensors."""
    wanted = model.state_dict()
    found: dict[str, Tensor] = {}
    with opened(folder) as file:
        if set(file.keys()) != set(wanted):
            raise disagree(folder, min(set(file.keys()) ^ set(wanted)))
        for name, weight in wanted.items():
            saved = file.get_tensor(name)
            _require_kind(name, saved, weight, folder)
            if weight.is_meta:
                found[name] = saved
            else:
                weight.copy_(saved)
    for name, table in model.named_modules():
        if isinstance(table, EmbeddingTable):
            prefix = f"{name}."
            own = {n.removeprefix(prefix): t for n, t in found.items() if n.startswith(prefix)}
            if own:
                table.load_state_dict(own, assign=True)


def _require_kind(name: str, saved: Tensor, weight: Tensor, folder: Path) -> None:
    if saved.shape != weight.shape:
        raise disagree(folder, name)
    is_widened = weight.dtype == torch.float32 and saved.dtype in _WIDENED
    if saved.dtype != weight.dtype and (name.startswith(PREFIX) or not is_widened):
        kinds = [str(t.dtype).removeprefix("torch.") for t in (saved, weight)]
        raise unreadable(folder, f"{name!r} is {kinds[0]} where {kinds[1]} belongs")
    if not is_finite(saved):
        raise unreadable(folder, f"{name!r} holds NaN or infinite numbers")


@contextmanager
def opened(folder: Path, name: str = WEIGHTS) -> Iterator[Any]:
    """Open a safetensors file of an exported model on the CPU."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / name, framework="pt", device="cpu") as file:
            yield file
    except SafetensorError as error:
        raise unreadable(folder, f"{name} is not a safetensors file ({error})") from None


def all_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file of an exported model, by name."""
    with opened(folder, name) as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def is_finite(weight: Tensor) -> bool:
    """Whether all numbers are finite, checked in chunks of bounded size."""
    if not weight.is_floating_point():
        return True
    pieces = weight.detach().reshape(-1).split(_CHUNK_NUMBERS)
    return all(bool(piece.isfinite().all()) for piece in pieces)
