"""The command line: a dictionary of functions.

Progress and messages go to standard error. With `--json` a command prints exactly one JSON object
on standard output. A user's mistake is one line and exit code 2, never a traceback; so is a file
that may not be read or written, and a full disk. Started by torchrun, the first rank speaks for all
(see `outsize.launched`).
"""

from __future__ import annotations

import errno
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from outsize.cli.command_options import say
from outsize.cli.export_commands import evaluate, export, predict, serve
from outsize.cli.init_command import init
from outsize.cli.plan_command import plan
from outsize.cli.search_command import search
from outsize.cli.tour_commands import bench, demo
from outsize.cli.train_commands import compare, report, train
from outsize.errors import ConfigError, LostRanksError, OutsizeError
from outsize.launched import (
    is_first_rank,
    is_one_of_several,
    is_rank,
    leave,
    may_speak,
    report_failure,
    wait_for_first,
)
from outsize.suggestions import suggestion

__all__ = ["COMMANDS", "main"]

_ABOUT = "Train embedding models that outsize your memory."
_OF_THE_MACHINE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""What may befall any file, and is never a defect of ours; other errors of the system may be."""
_ON_SEVERAL_RANKS = ("train",)
_AFTER_A_STOP = {
    "train": "a run that was saved goes on with --resume",
    "compare": "the same command goes on: finished runs are kept",
}

COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "init": init,
    "demo": demo,
    "plan": plan,
    "train": train,
    "compare": compare,
    "report": report,
    "export": export,
    "predict": predict,
    "evaluate": evaluate,
    "search": search,
    "serve": serve,
    "bench": bench,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    app = typer.Typer(
        name="outsize",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback(help=_ABOUT)(_options)
    for name, command in COMMANDS.items():
        app.command(name)(_run_by(name, command))
    as_json = "--json" in words
    try:
        result = app(words, standalone_mode=False)
    except OutsizeError as error:
        _fail(str(error), as_json, is_own=isinstance(error, LostRanksError))
    except _Interrupted as stop:
        if is_first_rank():
            say("; ".join(["stopped", *stop.args]))
        leave(130)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and error.filename:
            _fail(f"{error.filename}: {error.strerror}", as_json)
        if type(error).__module__.partition(".")[0] not in ("click", "typer"):
            if not is_rank():
                raise
            traceback.print_exc()
            leave(1)
        _fail(_with_way_out(error.format_message(), words), as_json)  # type: ignore[attr-defined]
    try:
        if as_json and isinstance(result, dict) and is_first_rank():
            print(json.dumps(result))
        sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as after `| head`; Click ends so too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        leave(1)
    leave(result if isinstance(result, int) else 0)


def _with_way_out(message: str, words: list[str]) -> str:
    """A message of the parser of the command line, with what to do about it.

    Args:
        message: The message.
        words: The words of the command line.
    """
    if message.startswith("No such command"):
        word = message.partition("'")[2].partition("'")[0]
        return f"No such command {word!r}.{suggestion(word, COMMANDS)}"
    if words[0] in COMMANDS and "Did you mean" not in message:
        return f"{message.rstrip('.')}: outsize {words[0]} --help shows how"
    return message


class _Interrupted(Exception):
    """Ctrl-C or SIGTERM. Typer would turn `KeyboardInterrupt` into a bare exit code."""


def _run_by(name: str, command: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A command that says how to go on after a stop.

    Where several ranks would each run it in full, over each other's files, it is refused.
    """
    way_on = [_AFTER_A_STOP[name]] if name in _AFTER_A_STOP else []

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if name not in _ON_SEVERAL_RANKS and is_one_of_several():
            raise ConfigError(f"outsize {name} runs in one process: start it without torchrun")
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _Interrupted(*way_on) from None
        except Exception as error:
            if isinstance(error, OutsizeError | OSError) or not _follows_a_stop(error):
                raise
            raise _Interrupted(*way_on) from None

    return run


def _follows_a_stop(error: BaseException) -> bool:
    """Whether an error arose from a stop, such as that of a module that is imported in part."""
    cause = error.__context__
    return isinstance(cause, KeyboardInterrupt) or (cause is not None and _follows_a_stop(cause))


def _print_version(asked: bool | None) -> None:
    if asked:
        import outsize

        print(outsize.__version__)
        raise typer.Exit


def _options(
    version: Annotated[
        bool | None,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and stop."
        ),
    ] = None,
) -> None:
    """Options of no command."""


def _fail(message: str, as_json: bool, is_own: bool = False) -> NoReturn:
    """One line on standard error, the same as JSON where asked for, and exit code 2.

    Args:
        message: The line.
        as_json: Whether standard output gets it too.
        is_own: Whether it is about this rank alone, and printed besides the lines of other ranks.
    """
    line = " ".join(message.split())
    if not is_own:
        wait_for_first()
    is_speaker = may_speak()
    if is_own or is_speaker:
        say(f"outsize: {line}")
    if as_json and is_speaker:
        print(json.dumps({"error": line}))
    report_failure(f"outsize: {line}")
    leave(2)
