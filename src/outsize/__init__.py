"""Train embedding models that outsize your memory.

Three published systems in one library: compressed tables (CCE), row caches with bounded staleness
(HET), and negative caches for retrieval. The public names are listed in `__init__.pyi`. Each is
imported when it is first used, so that `import outsize` costs little more than `import torch`.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any


def _listed() -> dict[str, str]:
    """Public names and the modules that have them, as listed for type checkers."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _listed()
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'outsize' has no attribute {name!r}")
    home = _HOMES[name]
    is_package = home == "outsize"
    value = import_module(f"outsize.{name}") if is_package else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
