"""The states of torch's generators, which models may draw from, as in dropout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outsize.ranks.collectives import world_size

_OWN = "random."


def random_state() -> dict[str, Any]:
    """The states of torch's generators."""
    devices = list(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": devices}


def load_random_state(state: Mapping[str, Any]) -> None:
    """Load what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    # The machine that saved them may have had more GPUs.
    for device, value in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(value, device)


def own_generators() -> dict[str, Tensor]:
    """The states of this rank, for a file of its own; a single process saves them with its run."""
    if world_size() == 1:
        return {}
    state = random_state()
    devices = {f"{_OWN}cuda.{i}": value for i, value in enumerate(state["cuda"])}
    return {f"{_OWN}cpu": state["cpu"], **devices}


def load_own_generators(tensors: dict[str, Tensor]) -> None:
    """Take what `own_generators` returned out of the tensors of a file, and load it."""
    own = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_OWN)}
    if own:
        cpu = own.pop(f"{_OWN}cpu")
        in_order = sorted(own, key=lambda name: (len(name), name))  # cuda.2 before cuda.10
        load_random_state({"cpu": cpu, "cuda": [own[name] for name in in_order]})
