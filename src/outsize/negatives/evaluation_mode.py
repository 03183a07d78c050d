"""Encoding items in evaluation mode, whatever the encoder is made of."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def evaluation_mode(encode: Callable[..., Any]) -> Iterator[None]:
    """Every module called inside is in evaluation mode; afterwards each has the mode it had.

    An encoder may be any function. The modules it visibly has (itself, that of a method, those a
    function refers to) are switched from the start, any other when this thread calls it, each with
    all of its parts.
    """
    switched: list[nn.Module] = []
    thread = threading.get_ident()

    def switch(module: nn.Module) -> None:
        # Not by `eval()`, which modules may override and which no call undoes exactly.
        parts = [part for part in module.modules() if part.training]
        switched.extend(parts)
        for part in parts:
            part.training = False

    def switch_called(module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the module around it is switched
            return
        if module.training and threading.get_ident() == thread:
            switch(module)

    visible = _modules_of(encode)
    for module in visible:
        switch(module)
    # Under a new hook a compiled module would be compiled anew each time.
    is_compiled = any(_is_compiled(part) for module in visible for part in module.modules())
    try:
        with nullcontext() if is_compiled else _calling_before_modules(switch_called):
            yield
    finally:
        for module in switched:
            module.training = True


@contextmanager
def _calling_before_modules(hook: Callable[..., None]) -> Iterator[None]:
    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def _modules_of(encode: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a function is, belongs to or refers to."""
    found = [encode, getattr(encode, "__self__", None)]
    if inspect.isfunction(encode):
        known = inspect.getclosurevars(encode)
        found += [*known.nonlocals.values(), *known.globals.values()]
    return [value for value in found if isinstance(value, nn.Module)]
