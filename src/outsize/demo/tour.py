"""The tour: every stop of `STOPS` in turn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from outsize.demo.cache_stop import cache_stop
from outsize.demo.click_stop import click_stop
from outsize.demo.compress_stop import compress_stop
from outsize.demo.negatives_stop import negatives_stop
from outsize.demo.search_stop import search_stop
from outsize.errors import ConfigError, WriteError
from outsize.files import reason_of, write_text_atomically
from outsize.reporting.quantities import format_seconds

STOPS: dict[str, Callable[[Path, bool, Console], dict[str, Any]]] = {
    "click": click_stop,
    "compress": compress_stop,
    "cache": cache_stop,
    "negatives": negatives_stop,
    "search": search_stop,
}
_MARKER = ".outsize-demo"
_MARKER_TEXT = "Made by `outsize demo`, which replaces what is here when it is run again.\n"


def take_tour(out: Path, *, quick: bool = False, quiet: bool = False) -> dict[str, Any]:
    """Run every stop; each writes a run folder below `out`.

    Args:
        out: Folder of the tour. An earlier tour there is replaced; any other content is an error.
        quick: Tiny sizes.
        quiet: Show nothing.
    """
    _clear(out)
    console = Console(stderr=True, quiet=quiet)
    found = {}
    for name, stop in STOPS.items():
        started = time.perf_counter()
        found[name] = stop(out / name, quick, console)
        console.print(f"this stop took {format_seconds(time.perf_counter() - started)}")
    return found


def _clear(out: Path) -> None:
    """Make an empty folder of the tour, with a marker that says whose it is.

    Only stops in a folder with that marker are removed; whatever else is there is refused.
    """
    try:
        found = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file: choose another folder with --out")
        strange = [name for name in found if name not in (*STOPS, _MARKER)]
        if strange or (found and _MARKER not in found):
            raise ConfigError(
                f"{out} holds {(strange or found)[0]}, which no tour is known to have made: remove "
                "it, or choose another folder with --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomically(out / _MARKER, _MARKER_TEXT)
        for name in found:
            if name != _MARKER:
                shutil.rmtree(out / name)
    except OSError as error:
        raise WriteError(f"could not clear {out}: {reason_of(error)}") from error
