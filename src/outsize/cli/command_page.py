"""The page of the documentation that lists every command, its arguments and its options.

python -m outsize.cli.command_page > docs/reference/commands.md
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from outsize.cli import COMMANDS

_HEAD = """# Commands of the command line, with every option and its default

`outsize` alone prints a list of commands, and `outsize COMMAND --help` the options of one. Messages
and progress go to standard error. A mistake is one line and exit code 2. `--version` prints the
version.
"""


def command_page() -> str:
    """The page as Markdown."""
    app = typer.Typer(add_completion=False)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([_HEAD, *(line for name in COMMANDS for line in _section(commands[name]))])


def _section(command: Any) -> Iterator[str]:
    params = [param for param in command.params if param.name != "help"]
    arguments = [_value(param) for param in params if _is_argument(param)]
    yield f"## {command.name}"
    yield ""
    yield f"`outsize {' '.join([command.name, *arguments])}`: {command.help}"
    yield ""
    yield "| argument or option | default | effect |"
    yield "|---|---|---|"
    for param in params:
        effect, _, default = (param.help or "").partition(" Default: ")
        cells = [_names(param), default.rstrip(".") or _default(param), effect]
        yield f"| {' | '.join(map(_escaped, cells))} |"
    yield ""


def _escaped(text: str) -> str:
    """Text as a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _value(param: Any) -> str:
    """The word that stands for a value."""
    return str(param.metavar or param.name.upper())


def _names(param: Any) -> str:
    if _is_argument(param):
        return f"`{_value(param)}`"
    names = [*param.opts, *param.secondary_opts]
    value = "" if param.is_flag else f" {_value(param)}"
    return ", ".join(f"`{name}{value}`" for name in names)


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if not _is_argument(param) and param.is_flag:
        return "on" if param.default else "off"
    default = param.default
    return "none" if default is None or default == [] or default == () else f"`{default}`"


if __name__ == "__main__":
    print(command_page(), end="")
