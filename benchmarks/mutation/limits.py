"""A pytest plugin that ends the process when one test takes longer than it may.

`MUTATION_LIMITS` names a JSON file with the seconds of each test. A mutant that makes a test hang,
in a thread or in native code, then ends within that time.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

_LIMITS: dict[str, float] = json.loads(Path(os.environ["MUTATION_LIMITS"]).read_text())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Watch one test, its fixtures included."""
    faulthandler.dump_traceback_later(_LIMITS[item.nodeid], exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
