"""Evaluation mode for an encoder that may be any function."""

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
    """Run every module that is called inside in evaluation mode, then restore each one's mode.

    The modules that can be found from the encoder (itself, the owner of a method, those a function
    refers to) are switched on entry, others when this thread first calls them. A module is switched
    with all its submodules.
    """
    switched: list[nn.Module] = []
    thread = threading.get_ident()

    def switch(module: nn.Module) -> None:
        # Not by `eval()`: modules may override it, and `train()` would not restore mixed modes.
        parts = [part for part in module.modules() if part.training]
        switched.extend(parts)
        for part in parts:
            part.training = False

    def switch_called(module: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():  # the outer module is switched already
            return
        if module.training and threading.get_ident() == thread:
            switch(module)

    visible = _modules_of(encode)
    for module in visible:
        switch(module)
    # A new global hook would make torch.compile recompile the module each time.
    is_compiled = any(_is_compiled(part) for module in visible for part in module.modules())
    try:
        with nullcontext() if is_compiled else register_module_forward_pre_hook(switch_called):
            yield
    finally:
        for module in switched:
            module.training = True


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def _modules_of(encode: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a callable is, is a method of, or refers to."""
    found = [encode, getattr(encode, "__self__", None)]
    if inspect.isfunction(encode):
        known = inspect.getclosurevars(encode)
        found += [*known.nonlocals.values(), *known.globals.values()]
    return [value for value in found if isinstance(value, nn.Module)]
