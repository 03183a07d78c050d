"""The speed of a machine, as `outsize bench calibrate` measures it and `outsize plan` uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from outsize.errors import ConfigError
from outsize.files import write_text_atomically
from outsize.json_files import Each, SchemaError, Whole, read_json

FORMAT = 1
_SCHEMA = {
    "format": Whole(1),
    "threads": Whole(1),
    "dense_s": float,
    "rows_s": float,
    "exchange": {"round_s": float, "peer_s": float, "byte_s": float},
    "wires": Each(float),
    "environment": Each(str),
}


@dataclass(frozen=True)
class ExchangeSpeed:
    """What a round of messages costs between processes of one machine.

    Attributes:
        round_s: Seconds of a round between two ranks, without content.
        peer_s: Processor seconds that each further rank adds to a round.
        byte_s: Seconds per byte that a rank sends.
    """

    round_s: float
    peer_s: float
    byte_s: float


@dataclass(frozen=True)
class Calibration:
    """The speed of one rank of a machine.

    Attributes:
        threads: Torch threads of the rank.
        dense_s: Seconds of the reference step of a dense model.
        rows_s: Seconds of the reference step of rows.
        exchange: Rounds between processes.
        wires: For each wire, seconds to encode and decode a number.
        environment: Hardware, versions and date.
    """

    threads: int
    dense_s: float
    rows_s: float
    exchange: ExchangeSpeed
    wires: dict[str, float]
    environment: dict[str, str]

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
    way_out = "measure anew: outsize bench calibrate"
    try:
        found = read_json(path, _SCHEMA)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no calibration; {way_out} --out {path}") from None
    except (OSError, SchemaError) as error:
        fact = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path} is no calibration ({fact}); {way_out}") from None
    if found["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {found['format']}, and this version reads {FORMAT}; {way_out}"
        )
    speeds = {"dense_s": found["dense_s"], "rows_s": found["rows_s"], **found["exchange"]}
    for name, value in speeds.items():
        if not 0 <= value < float("inf") or (value == 0 and name in ("dense_s", "rows_s")):
            raise ConfigError(f"{path}: {name} is {value}, which is no time; {way_out}")
    return Calibration(
        threads=found["threads"],
        dense_s=found["dense_s"],
        rows_s=found["rows_s"],
        exchange=ExchangeSpeed(**{name: found["exchange"][name] for name in
                                  ("round_s", "peer_s", "byte_s")}),
        wires=dict(found["wires"]),
        environment=dict(found["environment"]),
    )  # fmt: skip
