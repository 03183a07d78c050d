"""Run as a script: tries the cases on standard input, a line of JSON each, and says how each ends.

A case is a base of `odd_values` and settings. Those that load run in a process of their own, with a
bounded address space and a time limit, forked from this one, which has imported everything already.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet  # noqa: F401  imported here, once for all
import torch._dynamo  # noqa: F401

from benchmarks.torture.odd_values import bases
from outsize.errors import OutsizeError
from outsize.training.config import RunConfig, load_config
from outsize.training.run import train
from outsize.training.strict_toml import to_toml

MORE_BYTES = 3 << 30
SECONDS = 120


def main() -> None:
    """Answer every line with a line."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            base, settings = json.loads(line)
            found = try_case(base, settings, Path(folder))
            print(json.dumps({"base": base, "settings": settings, **found}), flush=True)


def try_case(base: str, settings: list[str], folder: Path) -> dict[str, Any]:
    """How a case ends: "refused", "trained", or in a way that no case may end."""
    run_file = folder / "run.toml"
    run_file.write_text(to_toml(bases()[base][0]))
    signal.alarm(SECONDS)
    try:
        config = load_config(run_file, settings)
    except OutsizeError as error:
        return {"outcome": "refused", "words": str(error)}
    except TimeoutError:
        return {"outcome": "no end", "words": f"while it was loaded, after {SECONDS} s"}
    except Exception:
        return {"outcome": "traceback", "words": traceback.format_exc()}
    finally:
        signal.alarm(0)
    return run_in_child(config, folder / "result.json")


def run_in_child(config: RunConfig, result: Path) -> dict[str, Any]:
    """Train in a fork of this process."""
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        found = run_one(config)
        found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        result.write_text(json.dumps(found))
        os._exit(0)
    end = time.monotonic() + SECONDS
    while (done := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"outcome": "no end", "words": f"after {SECONDS} s"}
        time.sleep(0.005)
    with contextlib.suppress(OSError):
        said: dict[str, Any] = json.loads(result.read_text())
        return said
    return {"outcome": "died", "words": f"with status {done[1]}"}


def run_one(config: RunConfig) -> dict[str, Any]:
    """Train, with so many bytes more than this process has already."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))
    try:
        summary = train(config, quiet=True).summary()
    except OutsizeError as error:
        return {"outcome": "refused", "words": str(error)}
    except BaseException:
        return {"outcome": "traceback", "words": traceback.format_exc()}
    odd = [
        f"{split} {name}"
        for split in ("validation", "test")
        for name, value in summary[split].items()
        if value is not None and not math.isfinite(value)
    ]
    return {"outcome": "not finite" if odd else "trained", "words": ", ".join(odd)}


def _raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
