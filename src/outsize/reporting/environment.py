"""The hardware and versions that numbers were measured with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

from outsize.version import __version__


def environment() -> dict[str, str]:
    """Hardware, versions and date, for reports and results files."""
    found = {
        "outsize": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": metadata.version("numpy"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "measured_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
