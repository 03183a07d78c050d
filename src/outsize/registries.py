"""Registries: plain dictionaries of names, looked up when a name is used.

Whatever a run file names is found in one of them, so what a user enters counts as our own does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

from outsize.errors import ConfigError
from outsize.suggestions import closest, shortened

Kind = TypeVar("Kind")
OWN_NAMES = "If it is your own, import its module first: --import MODULE"


class ByTask(MutableMapping[str, Kind]):
    """One view of several registries, one for each task; it follows whatever is entered in them.

    A kind that is entered here goes to the registry of its task.

    Args:
        **parts: Task → its registry. Kinds have that task as their attribute `task`.
    """

    def __init__(self, **parts: MutableMapping[str, Any]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Kind:
        return self._joined()[name]

    def __setitem__(self, name: str, kind: Kind) -> None:
        task = getattr(kind, "task", None)
        if task not in self._parts:
            raise ConfigError(
                f"{kind!r} cannot be entered as {name!r}: its `task` must be one of "
                f"{', '.join(self._parts)}, but is {task!r}"
            )
        for part in self._parts.values():
            part.pop(name, None)
        self._parts[task][name] = kind

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        for part in self._parts.values():
            part.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._joined())

    def __len__(self) -> int:
        return len(self._joined())

    def __repr__(self) -> str:
        return repr(self._joined())

    def _joined(self) -> dict[str, Kind]:
        return {name: kind for part in self._parts.values() for name, kind in part.items()}


def require_known(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that a registry does not have.

    Args:
        what: What is named, such as the key of a run file.
        name: The name.
        known: The names there are.
    """
    known = list(known)
    if name not in known:
        raise ConfigError(
            f"{what} must be one of {', '.join(known)}, but got {shortened(name)!r}."
            f"{closest(name, known)} {OWN_NAMES}"
        )


def name_of(kinds: Mapping[str, object], config: object) -> str:
    """The name under which the class of a configuration is registered."""
    for name, kind in kinds.items():
        if kind is type(config):
            return name
    raise ConfigError(
        f"{type(config).__name__} has no name that a run file could use: enter it in the registry "
        f"that has {', '.join(kinds)}"
    )
