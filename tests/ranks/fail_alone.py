"""Run by torchrun: a command that fails on the second rank, while the first would go on."""

import os
import time
from typing import Annotated

import typer

import outsize.launched
from outsize.cli import COMMANDS, main
from outsize.errors import DataError

outsize.launched._GRACE_S = 1.0  # the first rank does not fail, however long the second waits


def train(as_json: Annotated[bool, typer.Option("--json")] = False) -> dict[str, int]:
    """As `outsize train`, the command of several ranks."""
    if os.environ["RANK"] == "1":
        raise DataError("rank 1 has no such data")
    time.sleep(200)
    return {}


COMMANDS["train"] = train
main(["train", "--json"])
