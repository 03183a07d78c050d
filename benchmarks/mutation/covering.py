"""A pytest plugin that records which tests run which lines of given files, and how long they take.

It is switched on by two environment variables: `MUTATION_FILES`, the files to watch (separated by
colons), and `MUTATION_COVERED`, a folder. Each process writes one file of JSON lines there: the
test, its seconds, and the lines of each file. Only tests that pass are recorded. What runs in
processes that a test starts is not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_Tracer = Any  # what sys.settrace takes


class _Watcher:
    """Records executed lines of the watched files."""

    def __init__(self, files: list[str]) -> None:
        self.files = {str(Path(name).resolve()): name for name in files}
        self.lines: dict[str, set[int]] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> _Tracer:
        name = self.files.get(frame.f_code.co_filename)
        if name is None:
            return None
        seen = self.lines.setdefault(name, set())

        def line(frame: FrameType, event: str, argument: object) -> _Tracer:
            seen.add(frame.f_lineno)
            return line

        return line


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Watch one test, its fixtures included."""
    watcher = _Watcher(os.environ["MUTATION_FILES"].split(":"))
    item.stash[_FAILED] = False
    threading.settrace(watcher)
    sys.settrace(watcher)
    started = time.perf_counter()
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
    lines = watcher.lines
    for fixture in getattr(item, "fixturenames", ()):
        for name, shared in _SHARED.get(fixture, {}).items():
            lines[name] = lines.get(name, set()) | shared
    if lines and not item.stash[_FAILED]:
        row = {
            "test": item.nodeid,
            "seconds": time.perf_counter() - started,
            "lines": {name: sorted(found) for name, found in lines.items()},
        }
        with (Path(os.environ["MUTATION_COVERED"]) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None]:
    """Remember the lines of fixtures that several tests share, for each of these tests."""
    outer = sys.gettrace()
    if fixturedef.scope == "function" or not isinstance(outer, _Watcher):
        yield
        return
    watcher = _Watcher(list(outer.files.values()))
    threading.settrace(watcher)
    sys.settrace(watcher)
    try:
        yield
    finally:
        threading.settrace(outer)
        sys.settrace(outer)
    _SHARED[fixturedef.argname] = watcher.lines


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any]:
    """Remember whether the test passed."""
    outcome = yield
    if not outcome.get_result().passed:
        item.stash[_FAILED] = True


_FAILED = pytest.StashKey[bool]()
_SHARED: dict[str, dict[str, set[int]]] = {}
