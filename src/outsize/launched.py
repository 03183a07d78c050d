"""Running under torchrun: which rank prints, what torchrun reports, and how a rank exits.

torchrun ends all ranks as soon as one has failed, and then prints a report of its own. An error
that all ranks raise is therefore printed by the first rank only, while the others wait to be ended.
Its message is also written to the error file that torchrun provides, so that the report shows it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

_GRACE_S = 10.0


def is_first_rank() -> bool:
    """Whether this process prints for all ranks: it is rank 0 of a launch, or the only process."""
    return os.environ.get("RANK", "0") == "0"


def is_rank() -> bool:
    """Whether a launcher started this process as a rank, which the launcher may restart."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_one_of_several() -> bool:
    """Whether torchrun started this process as one of several ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def wait_for_first() -> None:
    """Wait until the first rank has had time to fail, which ends this one; no-op on the first rank.

    Returns only if the first rank continues: the error is then this rank's alone.
    """
    if is_one_of_several() and not is_first_rank():
        time.sleep(_GRACE_S)


def may_speak() -> bool:
    """Whether this rank prints the error: true for the first of this machine's ranks to ask."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not is_one_of_several() or not path:
        return is_first_rank()
    try:
        claim = Path(path).parent.parent / "spoken"  # all ranks of an attempt share this folder
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:
        return is_first_rank()
    return True


def report_failure(line: str) -> None:
    """Write why this rank fails to torchrun's error file, if there is one, for its report."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    facts = {"py_callstack": line, "timestamp": str(int(time.time()))}
    content = {"message": {"message": line, "extraInfo": facts}}
    with contextlib.suppress(OSError):  # the message has been printed anyway
        Path(path).write_text(json.dumps(content), "utf-8")


def leave(code: int) -> NoReturn:
    """Exit the process; a rank exits at once, without the interpreter's cleanup.

    A model wrapped in DDP keeps threads of the process group alive. Destroying them while the
    interpreter shuts down can abort a rank that has finished its work.
    """
    if is_rank():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def reason_of_failure(output: str) -> str:
    """The line that says why ranks failed, in what they and torchrun have printed.

    The first of our messages, but that of compiling, which is no error; else the first error of any
    kind; else how a rank ended, as torchrun reports it.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern in (r"outsize: (?!compiling)(.*)", r"(.*Error: .*)", r"(exitcode *: .*)"):
        for line in lines:
            if match := re.match(pattern, line):
                return match[1]
    return lines[-1] if lines else "there was no output"
