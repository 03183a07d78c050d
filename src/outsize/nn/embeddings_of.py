"""The embeddings of a torch model: where they are, what they share, and which can be replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from outsize.errors import ConfigError
from outsize.nn.table_module import require_honoured
from outsize.suggestions import few

Replaceable = nn.Embedding | nn.EmbeddingBag
Only = str | Iterable[str] | Callable[[str, nn.Module], bool] | None
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Place:
    """A module's place in a model.

    Attributes:
        name: Its name, as in `named_modules`.
        parent: The module that holds it.
        key: Its name there.
        module: The module.
    """

    name: str
    parent: nn.Module
    key: str
    module: Replaceable


@dataclass
class Group:
    """The embeddings that share one weight, in all their places.

    Attributes:
        places: Where they are.
    """

    places: list[Place] = field(default_factory=list)

    @property
    def weight(self) -> Tensor:
        """The weight that they share."""
        return self.places[0].module.weight

    @property
    def name(self) -> str:
        """Name of the first place."""
        return self.places[0].name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all places."""
        return tuple(place.name for place in self.places)

    @property
    def num_bytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.numel() * self.weight.element_size()

    @property
    def modules(self) -> list[Replaceable]:
        """The different modules."""
        return list({id(place.module): place.module for place in self.places}.values())

    @property
    def ignored(self) -> int | None:
        """The id that is padding in every one of the modules, if there is one."""
        ids = {module.padding_idx for module in self.modules}
        return ids.pop() if len(ids) == 1 else None


def groups_of(model: nn.Module) -> list[Group]:
    """All embeddings of a model by weight, in the order of `named_modules`."""
    groups: dict[int, Group] = defaultdict(Group)
    for prefix, parent in model.named_modules():
        for key, module in parent._modules.items():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                name = f"{prefix}.{key}" if prefix else key
                groups[id(module.weight)].places.append(Place(name, parent, key, module))
    return list(groups.values())


def chosen(groups: list[Group], only: Only, min_rows: int) -> tuple[list[Group], set[str]]:
    """The groups that a user asks for, and the names that were given explicitly.

    A name given explicitly counts whatever its rows. A group is chosen if any of its places is.
    """
    if only is None or callable(only):
        wanted = only or (lambda name, module: True)
        found = [
            group
            for group in groups
            if group.weight.shape[0] >= min_rows
            and any(wanted(place.name, place.module) for place in group.places)
        ]
        return found, set()
    names = {only} if isinstance(only, str) else set(only)
    known = {name for group in groups for name in group.names}
    for name in sorted(names - known):
        raise ConfigError(
            f"compress_: the model has no embedding {name!r}; it has {few(sorted(known), name)}"
        )
    return [group for group in groups if names & set(group.names)], names


def obstacle(model: nn.Module, group: Group) -> str:
    """Why a group cannot be replaced; empty if it can."""
    for module in group.modules:
        kind = nn.Embedding if isinstance(module, nn.Embedding) else nn.EmbeddingBag
        if type(module) is not kind:
            return f"it is a {type(module).__name__}, not an nn.{kind.__name__} itself"
        if type(module.weight) is not nn.Parameter:
            return f"its weight is a {type(module.weight).__name__}, not a plain nn.Parameter"
        if any(getattr(module, hooks) for hooks in _HOOKS):
            return "it has hooks, which would be lost: remove them first"
        if set(module._parameters) != {"weight"} or module._buffers or module._modules:
            return "it has parameters, buffers or modules of its own beside its weight"
        try:
            require_honoured("it", module.max_norm, module.scale_grad_by_freq, module.sparse)
        except ConfigError as error:
            return str(error).removeprefix("it: ")
    holder = _other_holder(model, group)
    if holder:
        return (
            f"{holder} uses the same weight, which a compressed table does not have: give it a "
            "weight of its own"
        )
    return ""


def _other_holder(model: nn.Module, group: Group) -> str:
    """Name of a parameter elsewhere that is the group's weight or shares memory with it."""
    weight, ours = group.weight, {id(module) for module in group.modules}
    for prefix, module in model.named_modules():
        if id(module) in ours:
            continue
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and (tensor is weight or _share_memory(tensor, weight)):
                return f"{prefix}.{key}" if prefix else key
    return ""


def _share_memory(one: Tensor, other: Tensor) -> bool:
    if one.is_meta or other.is_meta or one.device != other.device:
        return False
    if one.layout != torch.strided or other.layout != torch.strided:
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
