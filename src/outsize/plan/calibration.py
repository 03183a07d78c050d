"""The speed of a machine, as `outsize bench calibrate` measures it and `outsize plan` uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from outsize.errors import ConfigError
from outsize.files import write_text_atomically
from outsize.json_files import Each, SchemaError, Whole, read_json

FORMAT = 4
NUMBERS = ("dense", "rows", "wait", "round_s", "byte_s", "mean_s", "mean_byte_s")
"""What is measured of several ranks at once: the numbers of `Together`."""
_SCHEMA = {
    "format": Whole(1),
    "threads": Whole(1),
    "dense_s": float,
    "rows_s": float,
    "peer_s": float,
    "together": [{"num_ranks": Whole(2), **dict.fromkeys(NUMBERS, float)}],
    "wires": Each(float),
    "environment": Each(str),
}


@dataclass(frozen=True)
class Together:
    """Ranks that compute on one machine at once, and then exchange messages.

    Attributes:
        num_ranks: Number of ranks.
        dense: Processor time of a dense step, in multiples of that of a rank alone.
        rows: Processor time of a step of rows, likewise.
        wait: Time that a rank waits for slower ones, as a share of what it computes in a step.
        round_s: Seconds of a round without content.
        byte_s: Seconds per byte that a rank sends.
        mean_s: Seconds by which averaging the gradients of a small model prolongs its step.
        mean_byte_s: Further seconds per byte that a rank sends to average the gradients of a larger
            one, the sums included.
    """

    num_ranks: int
    dense: float
    rows: float
    wait: float
    round_s: float
    byte_s: float
    mean_s: float = 0.0
    mean_byte_s: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """The speed of a machine.

    Attributes:
        threads: Torch threads of the rank whose steps were measured.
        dense_s: Seconds of the reference step of a dense model, of a rank alone.
        rows_s: Seconds of the reference step of rows, of a rank alone.
        peer_s: Seconds that each rank beyond those of `together` adds to a round.
        together: Several ranks at once, two first, then more up to the cores of the machine.
        wires: For each wire, seconds to encode and decode a number.
        environment: Hardware, versions and date.
    """

    threads: int
    dense_s: float
    rows_s: float
    peer_s: float
    together: tuple[Together, ...]
    wires: dict[str, float]
    environment: dict[str, str]

    def of_ranks(self, num_ranks: int) -> Together:
        """So many ranks on the machine: as measured, or between two that were.

        More ranks than were measured compute as those did, and each adds `peer_s` to a round.
        """
        first, last = self.together[0], self.together[-1]
        alone = replace(first, num_ranks=1, dense=1.0, rows=1.0, wait=0.0)
        if num_ranks > last.num_ranks:
            further = (num_ranks - last.num_ranks) * self.peer_s
            return replace(last, num_ranks=num_ranks, round_s=last.round_s + further)
        known = [alone, *self.together]
        places = [each.num_ranks for each in known]
        between = {
            name: float(np.interp(num_ranks, places, [getattr(each, name) for each in known]))
            for name in NUMBERS
        }
        return Together(num_ranks, **between)

    @property
    def words(self) -> str:
        """Where and when it was measured."""
        facts = self.environment
        return f"{facts.get('cpu', 'an unknown machine')}, {facts.get('measured_at', 'no date')}"


def default_calibration(environment: Mapping[str, str] | None = None) -> Path:
    """The file of this user: `outsize/calibration.json` in the folder of caches.

    Args:
        environment: The environment variables; by default those of this process.
    """
    given = os.environ if environment is None else environment
    folder = given.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "outsize" / "calibration.json"


def save_calibration(found: Calibration, path: Path) -> None:
    """Write a calibration, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps({"format": FORMAT, **asdict(found)}, indent=1) + "\n")


def load_calibration(path: Path) -> Calibration:
    """Read what `save_calibration` wrote."""
    way_out = "measure again: outsize bench calibrate"
    try:
        number = read_json(path, {"format": Whole(1)})["format"]
        if number != FORMAT:
            raise ConfigError(
                f"{path} has format {number}, and this version reads {FORMAT}; {way_out}"
            )
        found = read_json(path, _SCHEMA)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no calibration; {way_out} --out {path}") from None
    except (OSError, SchemaError) as error:
        fact = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} is not a calibration ({fact}); {way_out}") from None
    together = tuple(Together(**each) for each in found["together"])
    sizes = [each.num_ranks for each in together]
    if sizes != sorted({2, *sizes}):
        raise ConfigError(f"{path}: together is of {sizes} ranks, not of 2 and more; {way_out}")
    speeds = {name: found[name] for name in ("dense_s", "rows_s", "peer_s")}
    for each in together:
        speeds |= {f"{name} of {each.num_ranks} ranks": getattr(each, name) for name in NUMBERS}
    for name, value in speeds.items():
        if not 0 <= value < float("inf") or (value == 0 and name in ("dense_s", "rows_s")):
            raise ConfigError(f"{path}: {name} is {value}, which is not a time; {way_out}")
    return Calibration(
        threads=found["threads"],
        dense_s=found["dense_s"],
        rows_s=found["rows_s"],
        peer_s=found["peer_s"],
        together=together,
        wires=dict(found["wires"]),
        environment=dict(found["environment"]),
    )
