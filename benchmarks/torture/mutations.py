"""Run files and data with random edits: they train, or are refused in one line."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.torture.children import INTERRUPTED, Child, Done, Limits, call
from benchmarks.torture.commands import trained
from benchmarks.torture.data_edits import edit_table
from benchmarks.torture.odd_values import ODD_VALUES, as_toml, bases, cases, write_files
from benchmarks.torture.runs import PAIRS, TABULAR, write_clicks, write_pairs
from benchmarks.torture.trial import REFUSED, SURVIVED, Trial, require
from outsize.training.strict_toml import to_toml

_EXAMPLES = Path(__file__).parents[2] / "examples"
_SMALL = {"num_train": 400, "num_validation": 100, "num_test": 100, "largest_vocabulary": 200,
          "batch_size": 64, "epochs": 1, "steps": 4, "num_queries": 40, "num_items": 50,
          "num_clusters": 4, "drift": 20, "bottom": [8], "top": [8], "hidden": [8],
          "count": 1}  # fmt: skip
_LIMITS = Limits(more_bytes=3 << 30)
_MOST_CHARACTERS = 1000
_EDITS = ("value", "value", "typo", "unknown key", "no section", "section twice", "line twice",
          "odd text", "cut", "no utf-8", "line lost", "lines swapped")  # fmt: skip
_ODD_TEXTS = ("\x00", "\u2028", "\ufeff", "é", "漢", "\U0001f600", '"', "'''", "[[", "]", "#", "=",
              "\\", "nan", "-inf", "1e999", "{}", "\r", "\t", "~")  # fmt: skip


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Edit a run file or its data, and see what the command makes of it."""
    works = [_edit_run_file, _odd_value, _edit_data, _edit_data_of_export]
    done = works[trial.number % len(works)](trial, describe)
    if done.code == INTERRUPTED:
        done.must_not_crash()
        return SURVIVED, "a long run, which was interrupted"
    done.must_end_well_or_in_a_line()
    if done.code:
        line = done.refusal
        require(len(line) < _MOST_CHARACTERS, f"more than a line: {line[:2000]}")
        return REFUSED, line
    if done.out.startswith("{"):
        _require_finite(json.loads(done.out))
    return SURVIVED, ""


def _require_finite(found: dict[str, Any]) -> None:
    for split in ("validation", "test", "metrics"):
        for name, value in found.get(split, {}).items():
            is_bad = isinstance(value, float) and not math.isfinite(value)
            require(not is_bad, f"{split} {name} is {value}")


def _train(folder: Path, *settings: str) -> Done:
    words = [word for setting in settings for word in ("--set", setting)]
    command = ("train", "run.toml", "--out", "run", "--json", *words)
    # Without the line that made it small, a run has the size of the defaults.
    return Child(command, folder, limits=_LIMITS).done(may_take_long=True)


def _odd_value(trial: Trial, describe: Callable[[str], None]) -> Done:
    """One key with one odd value."""
    name, key, value = trial.draw.choice(_cases())
    describe(f"{name}: {key} = {value[:60]}")
    write_files(trial.folder)
    (trial.folder / "run.toml").write_text(to_toml(bases()[name][0]))
    return _train(trial.folder, f"{key}={value}")


@cache
def _cases() -> list[tuple[str, str, str]]:
    return cases()


def _edit_run_file(trial: Trial, describe: Callable[[str], None]) -> Done:
    """Up to three edits of the text of an example, or of a small run of another kind."""
    texts = {path.name: shrink(path.read_text()) for path in sorted(_EXAMPLES.glob("*.toml"))}
    texts |= {name: to_toml(tree) for name, (tree, _) in bases().items()}
    name = trial.draw.choice(list(texts))
    describe(name)
    content = texts[name].encode()
    for _ in range(trial.draw.choice([1, 1, 2, 3])):
        content, what = edit_text(content, trial.draw)
        describe(what)
    write_files(trial.folder)
    (trial.folder / "run.toml").write_bytes(content)
    return _train(trial.folder)


def shrink(text: str) -> str:
    """A run file with sizes that take no time."""
    for key, value in _SMALL.items():
        text = re.sub(rf"(?m)^{key} = [^#\n]*", f"{key} = {value} ", text)
    return text


def edit_text(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """One random edit of the text of a run file, and what it was."""
    text = content.decode(errors="surrogateescape")
    lines = text.splitlines(keepends=True) or [""]
    values = [i for i, line in enumerate(lines) if " = " in line]
    heads = [i for i, line in enumerate(lines) if line.startswith("[")]
    way = draw.choice(_EDITS)
    place = draw.randrange(len(lines))
    if way in ("value", "typo") and values:
        place = draw.choice(values)
        key, _, value = lines[place].partition(" = ")
        if way == "value":
            value = f"{as_toml(draw.choice(ODD_VALUES))}\n"
        else:
            spot = draw.randrange(len(key))
            key = key[:spot] + draw.choice("abcxyz_-.é") + key[spot + 1 :]
        lines[place] = f"{key} = {value}"
        return _joined(lines), f"{way}: {lines[place].strip()[:60]}"
    if way == "unknown key":
        lines.insert(place, f"{draw.choice(['xyz', 'learning_rat', 'seed2'])} = 1\n")
    elif way in ("no section", "section twice") and heads:
        start = draw.choice(heads)
        stop = min([i for i in heads if i > start], default=len(lines))
        if way == "no section":
            del lines[start:stop]
        else:
            lines += ["\n", *lines[start:stop]]
    elif way == "line twice":
        lines.insert(place, lines[place])
    elif way == "line lost":
        del lines[place]
    elif way == "lines swapped":
        other = draw.randrange(len(lines))
        lines[place], lines[other] = lines[other], lines[place]
    elif way == "cut":
        return content[: draw.randrange(len(content) + 1)], way
    elif way == "no utf-8":
        spot = draw.randrange(len(content) + 1)
        return content[:spot] + b"\xff\xfe" + content[spot:], way
    else:
        spot = draw.randrange(len(text) + 1)
        added = draw.choice(_ODD_TEXTS)
        edited = text[:spot] + added + text[spot:]
        return edited.encode(errors="surrogateescape"), f"{added!r} at {spot}"
    return _joined(lines), f"{way} (line {place})"


def _joined(lines: list[str]) -> bytes:
    return "".join(lines).encode(errors="surrogateescape")


def _edit_data(trial: Trial, describe: Callable[[str], None]) -> Done:
    """Train on a data file with random edits."""
    is_clicks = trial.draw.random() < 0.6
    name = "clicks.csv" if is_clicks else "pairs.csv"
    text = TABULAR if is_clicks else PAIRS
    if is_clicks:
        write_clicks(trial.folder / name, 400)
    else:
        write_pairs(trial.folder / name)
    written = edit_table(trial.folder / name, trial.draw, describe)
    text = text.replace(name, written.name).replace("steps = 24", "steps = 4")
    if trial.draw.random() < 0.5:
        text = text.replace("max_bad_rows = 0.0\n", "max_bad_rows = 0.9\n")
    (trial.folder / "run.toml").write_text(text)
    return _train(trial.folder)


def _edit_data_of_export(trial: Trial, describe: Callable[[str], None]) -> Done:
    """Score or evaluate a data file with random edits."""
    base = trained(trial)
    shutil.copytree(base / "exported", trial.folder / "exported")
    write_clicks(trial.folder / "clicks.csv", 300, seed=1)
    written = edit_table(trial.folder / "clicks.csv", trial.draw, describe)
    command = trial.draw.choice(["predict", "evaluate"])
    describe(command)
    words = ["--json", "--max-bad-rows", str(trial.draw.choice([0.0, 0.9]))]
    if command == "predict":
        words += ["--out", trial.draw.choice(["scores.csv", "scores.parquet"])]
    return call(trial.folder, command, "exported", written.name, *words, limits=_LIMITS)
