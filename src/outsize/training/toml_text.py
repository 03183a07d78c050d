"""TOML with a limit on nesting, so that neither its parser nor our code recurses too deep."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 32
"""Sections within sections, or lists within lists; run files need five."""

_BEFORE_KEY = re.compile(r"[,{\[]")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML that is not nested beyond `MAX_DEPTH`; a `ValueError` says what is wrong.

    A `TOMLDecodeError` where the text is not TOML.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        # The parser takes time quadratic in the parts of a key.
        for before in line.split("=")[:-1] if "=" in line else [line]:
            if before.count(".") > MAX_DEPTH and _has_long_key(before):
                raise ValueError(f"a key of more than {MAX_DEPTH} parts (at line {number})")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("it has a number of thousands of digits") from None
    if depth_of(tree) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return tree


def depth_of(tree: Any) -> int:
    """How deep dictionaries and lists are nested, at most `MAX_DEPTH` + 1."""
    depth, level = 0, [tree]
    while level and depth <= MAX_DEPTH:
        inner = [node for node in level if isinstance(node, Mapping | list)]
        depth += bool(inner)
        level = [
            child
            for node in inner
            for child in (node.values() if isinstance(node, Mapping) else node)
        ]
    return depth


def _has_long_key(text: str) -> bool:
    """Whether what stands before a `=`, or in a header, ends in a key of too many parts."""
    last = _BEFORE_KEY.split(text.rstrip().rstrip("]"))[-1]
    return last.count(".") > MAX_DEPTH
