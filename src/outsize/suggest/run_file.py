"""A suggestion as the text of a run file, and as a table for people."""

from __future__ import annotations

from typing import Any

from outsize.suggest.roles import LEFT_OUT
from outsize.suggest.suggestion import Suggestion
from outsize.suggestions import shortened
from outsize.training.strict_toml import to_toml

_WIDTH = 98
_HEADS = ("column", "kind", "values", "decision", "reason")
_MAX_CELL = 40


def run_file_text(suggestion: Suggestion, command: str, run: str) -> str:
    """The run file: sections with short comments, then the columns that are left out.

    Args:
        suggestion: The run.
        command: The command that made it.
        run: The name of the file.
    """
    about = "about " if suggestion.is_estimate else ""
    lines = [
        f"# Written by: {_comment(command)}",
        f"# {about}{suggestion.total_rows:,} rows. Train with: outsize train {_comment(run)}",
    ]
    lines += [f"# Note: {_comment(note)}" for note in suggestion.notes]
    for name, keys in suggestion.sections.items():
        comment = suggestion.comments.get(name)
        lines += ["", *([f"# {_comment(comment)}"] if comment else []), f"[{name}]"]
        for key, value in keys.items():
            lines += _assignment(key, value)
        if name == "data":
            lines += _left_out(suggestion)
    return "\n".join(lines) + "\n"


def decision_table(suggestion: Suggestion) -> list[str]:
    """The decisions as lines of aligned columns."""
    rows = [_HEADS] + [
        (shortened(d.column), d.kind, d.values, d.use, d.reason) for d in suggestion.decisions
    ]
    cut = [tuple(cell[:_MAX_CELL] for cell in row[:4]) + row[4:] for row in rows]
    widths = [max(len(row[place]) for row in cut) for place in range(4)]
    return [
        "  ".join([*(row[i].ljust(widths[i]) for i in range(4)), row[4]]).rstrip() for row in cut
    ]


def _left_out(suggestion: Suggestion) -> list[str]:
    found = [d for d in suggestion.decisions if d.use == LEFT_OUT]
    if not found:
        return []
    lines = ["# Left out; to use one, add its name to a list above:"]
    return lines + [
        _comment(f"#   {shortened(d.column)}: {d.kind}{', ' if d.kind else ''}{d.reason}")
        for d in found
    ]


def _assignment(key: str, value: Any) -> list[str]:
    """A key and its value, on several lines if it is a long list."""
    line = to_toml({key: value}).strip()
    if len(line) <= _WIDTH or not isinstance(value, list):
        return [line]
    lines, current = [f"{key} = ["], " "
    for item in value:
        text = f" {_toml(item)},"
        if len(current) + len(text) > _WIDTH and current.strip():
            lines.append(current)
            current = " "
        current += text
    return [*lines, current, "]"]


def _toml(value: Any) -> str:
    return to_toml({"x": value}).strip().removeprefix("x = ")


def _comment(text: str) -> str:
    """Text on one line, without control characters, which TOML has not."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
