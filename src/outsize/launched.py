"""What a process does for its launcher: which rank speaks, what torchrun is told, how it ends.

torchrun ends all ranks as soon as one has failed, and then prints a report of its own. A mistake
that all ranks meet is therefore told by the first one, while the others wait to be ended; and its
line goes into the file that torchrun has named for it, so that the report closes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

_GRACE_S = 10.0


def is_first_rank() -> bool:
    """Whether this process speaks for all: the first of a launch by torchrun, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_rank() -> bool:
    """Whether a launcher started this process as one of its ranks, which it may restart."""
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_one_of_several() -> bool:
    """Whether torchrun started this process as one of several ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def wait_for_first() -> None:
    """Give the first rank time to fail first, which ends this one; nothing for the first itself.

    Returns only where the first rank goes on: the mistake is then one of this rank alone.
    """
    if is_one_of_several() and not is_first_rank():
        time.sleep(_GRACE_S)


def may_speak() -> bool:
    """Whether this rank tells what went wrong: the first to ask, of those of torchrun here."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not is_one_of_several() or not path:
        return is_first_rank()
    try:
        claim = Path(path).parent.parent / "spoken"  # a folder that ranks of an attempt share
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    except OSError:
        return is_first_rank()
    return True


def report_failure(line: str) -> None:
    """Tell torchrun, where it asked to be told, why this rank fails: its report shows the line."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    facts = {"py_callstack": line, "timestamp": str(int(time.time()))}
    content = {"message": {"message": line, "extraInfo": facts}}
    with contextlib.suppress(OSError):  # the line was printed in any case
        Path(path).write_text(json.dumps(content), "utf-8")


def leave(code: int) -> NoReturn:
    """End the process; a rank ends at once.

    A model wrapped by DDP keeps threads of the process group alive, and destroying them while the
    interpreter shuts down can abort a rank that has done all its work.
    """
    if is_rank():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
