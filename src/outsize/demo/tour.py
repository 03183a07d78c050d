"""The tour through all rooms; a new pillar adds its room to `ROOMS`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.demo.cache import cache_room
from outsize.demo.click import click_room
from outsize.demo.compress import compress_room
from outsize.demo.negatives import negatives_room
from outsize.errors import ConfigError

ROOMS: dict[str, Callable[[Path, bool, Console], dict[str, Any]]] = {
    "click": click_room,
    "compress": compress_room,
    "cache": cache_room,
    "negatives": negatives_room,
}


def take_tour(out: Path, *, quick: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Walk through every room; each writes a run folder below `out`.

    Args:
        out: Folder of the tour. An earlier tour there is replaced; any other content is an error.
        quick: Tiny sizes.
        quiet: Show nothing.
    """
    strangers = [p.name for p in out.iterdir() if p.name not in ROOMS] if out.is_dir() else []
    if strangers or out.is_file():
        raise ConfigError(
            f"{out} holds {strangers[0] if strangers else 'a file'}, which is no part of a tour: "
            "choose another folder with --out"
        )
    shutil.rmtree(out, ignore_errors=True)
    console = Console(stderr=True, quiet=quiet)
    return {name: room(out / name, quick, console) for name, room in ROOMS.items()}
