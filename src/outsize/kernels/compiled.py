"""Kernels compiled by numba on first use, once per machine, with the torch code as fallback.

An operation has a module of torch code, which is the reference, and a module `<name>_numba` beside
it, whose functions are marked with `kernel`. `compiled` imports and compiles such a module when it
is first needed, and returns `None` where numba cannot be used; the reason is shown once.

Machine code is kept in the user's cache folder, under a digest of all kernel sources: processes,
checkouts and virtual environments with the same sources share it, and a changed source never meets
old code. Of several processes that need a kernel at once, one compiles and the others wait for it.

Kernels are serial code that releases the GIL and raises nothing. Those that begin with `part` and
`parts` do one part of their work; `outsize.kernels.threads` runs all parts in parallel. numba's own
parallel loops are not used: one of its threading layers aborts the process if two threads call it
at once, and another if a forked child does.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from outsize.kernels.freed_memory import keep_freed_memory
from outsize.kernels.openmp import addresses
from outsize.user_folders import user_cache

_CHOICE = "OUTSIZE_KERNELS"
_FOLDER = Path(__file__).parent
_lock = threading.RLock()
_modules: dict[str, ModuleType | None] = {}
_shown: set[str] = set()

if hasattr(os, "register_at_fork"):  # a fork waits for a compilation, so no child gets half of one
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


class Kernel:
    """A function that `compiled` makes machine code of.

    Args:
        function: Python code that numba can compile, without annotations.
        signature: The only types it is compiled for, in numba's notation.

    Attributes:
        run_on_team: Runs all parts on torch's threads, `run_on_team(parts, *arguments)`, where
            the kernel has parts and torch has such threads.
    """

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self.function = function
        self.signature = signature
        self.run_on_team: Callable[..., None] | None = None
        self._run: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the compiled function; other threads run meanwhile."""
        assert self._run is not None, f"{self.function.__name__} was not compiled"
        return self._run(*arguments)

    def compile(self, folder: Path | None) -> None:
        """Load the machine code from a folder, or compile it and save it there."""
        self._run = dispatcher = _machine_code(self.function, self.signature, folder)
        has_parts = self.function.__code__.co_varnames[:2] == ("part", "parts")
        if has_parts and (openmp := addresses()) is not None:
            from outsize.kernels.team_numba import on_team

            self.run_on_team = on_team(
                dispatcher, lambda function, types: _machine_code(function, types, folder), openmp
            )


def _machine_code(function: Callable[..., Any], signature: Any, folder: Path | None) -> Any:
    """A dispatcher of numba's for one signature; other types are an error, not compiled too."""
    from numba import njit

    dispatcher = njit(nogil=True, error_model="numpy")(function)
    if folder is not None:
        dispatcher._cache = _cache_in(folder, function)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return dispatcher


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Mark a function of a `_numba` module as a kernel with one signature."""
    return lambda function: Kernel(function, signature)


def compiled(name: str) -> Any:
    """A module of kernels, ready to run; `None` where numba cannot be used.

    Args:
        name: The module's name below `outsize.kernels`.
    """
    try:
        return _modules[name]
    except KeyError:
        with _lock:
            if name not in _modules:
                _modules[name] = _load(name)
            return _modules[name]


def is_worthwhile(size: int, least: int) -> bool:
    """Whether work of a size should use compiled kernels: from `least` on.

    Importing numba takes longer than small work does in torch. `OUTSIZE_KERNELS=numba` compiles
    for any size, and `OUTSIZE_KERNELS=torch` for none.
    """
    choice = os.environ.get(_CHOICE)
    return choice != "torch" and (size >= least or choice == "numba")


@cache
def numba_problem() -> str | None:
    """Why kernels cannot be compiled here, in a few words; `None` if they can."""
    if os.environ.get(_CHOICE) == "torch":
        return f"{_CHOICE} is set to torch"
    try:
        import numba
    except Exception as error:  # an ImportError, or that of a numpy it does not support
        return f"numba cannot be imported: {_first_line(error)}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    return None


def show_once(text: str) -> None:
    """Print a line on standard error, once per process; of several ranks only by the first."""
    if text not in _shown:
        _shown.add(text)
        if os.environ.get("RANK", "0") == "0":
            print(f"outsize: {text}", file=sys.stderr, flush=True)


def cache_folder() -> Path | None:
    """The folder of machine code, made if it is missing; `None` if no folder can be written."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(chosen)]
    else:
        places = [user_cache(), _FOLDER / "__pycache__"]
    for place in places:
        folder = place / f"kernels-{_digest()}"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, RuntimeError):
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def _load(name: str) -> ModuleType | None:
    problem = numba_problem()
    keep_freed_memory()  # such large work comes again in the next step
    if problem is None:
        try:
            return _compile(name)
        except Exception as error:
            problem = f"numba cannot compile {name}: {_first_line(error)}"
    if os.environ.get(_CHOICE) != "torch":
        show_once(f"{problem}; PyTorch is used instead, which is slower")
    return None


def _compile(name: str) -> ModuleType:
    module = importlib.import_module(f"outsize.kernels.{name}")
    folder = cache_folder()
    if folder is None:
        show_once("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR to one")
    with _one_process_at_a_time(folder):
        for value in vars(module).values():
            if isinstance(value, Kernel):
                value.compile(folder)
    return module


@contextmanager
def _one_process_at_a_time(folder: Path | None) -> Iterator[None]:
    """Hold a file lock, where the system has them; files are written whole in any case."""
    try:
        import fcntl
    except ImportError:
        folder = None
    if folder is None:
        yield
        return
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cache_in(folder: Path, function: Callable[..., Any]) -> Any:
    """A cache of numba's in a folder of ours; damaged files in it are compiled again."""
    from numba.core.caching import CompileResultCacheImpl, FunctionCache

    class InFolder:
        """Where numba keeps the code of a function, and what it must be made from."""

        @classmethod
        def from_function(cls, *_: Any) -> InFolder:
            return cls()

        def ensure_cache_path(self) -> None:
            folder.mkdir(parents=True, exist_ok=True)

        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return _digest()

        def get_disambiguator(self) -> str:
            return function.__module__

    class Implementation(CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = (InFolder,)

    class Cache(FunctionCache):  # type: ignore[misc]
        _impl_class = Implementation

        def load_overload(self, *arguments: Any) -> Any:
            try:
                found = super().load_overload(*arguments)
            except Exception:
                found = None
            if found is None:
                show_once("compiling kernels for this machine; this is done once")
            return found

        def save_overload(self, *arguments: Any) -> None:
            try:
                super().save_overload(*arguments)
            except OSError as error:
                show_once(f"compiled kernels could not be saved: {_first_line(error)}")

    return Cache(function)


@cache
def _digest() -> str:
    """A digest of the sources of all kernels, which may call each other."""
    sources = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*_numba.py")):
        sources.update(path.name.encode() + b"\0" + path.read_bytes())
    return sources.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
