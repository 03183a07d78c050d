"""Damaged files: each is refused by name, replaced by an older one, or does not matter."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.torture.children import Done, call, call_function
from benchmarks.torture.runs import (
    PAIRS,
    TABULAR,
    contents,
    first_difference,
    write_clicks,
    write_pairs,
    write_run,
)
from benchmarks.torture.trial import REFUSED, SURVIVED, Trial, require
from outsize.checkpoint import list_checkpoints
from outsize.contracts import RowStore

from outsize.kernels.rows.updates import AdagradRule
from outsize.spec import TableSpec
from outsize.stores import LocalStore
from outsize.stores.row_files import load_rows, save_rows

_GRID = ("compare", "run.toml", "--tables", "hash,cce", "--budgets", "64", "--seeds", "1",
         "--workers", "0", "--out", "grid", "--set", "train.steps=6")  # fmt: skip
_TABLE = TableSpec("ad", num_rows=200, dim=4)
_UNREAD = ("README.md", "card.json", "report.html", ".lock")
"""Files that no command reads; what is in them may be anything."""


def make_clicks(folder: Path) -> None:
    """A click run, the same run half-way, its exports, a comparison, and rows of a store."""
    write_clicks(folder / "clicks.csv", 1_500)
    write_run(folder / "run.toml", TABULAR)
    call(folder, "train", "run.toml", "--out", "run", "--json").must_end_well()
    _make_rest(folder, "clicks.csv", "scores.parquet")
    call(folder, *_GRID).must_end_well()
    call_function(folder, "save_rows", lambda: save_rows(_trained_store(), folder / "rows"))
    call_function(folder, "load_rows", lambda: _load_rows(folder)).must_end_well()


def make_pairs(folder: Path) -> None:
    """A retrieval run, the same run half-way, and its exports."""
    write_pairs(folder / "pairs.csv")
    write_run(folder / "run.toml", PAIRS)
    call(folder, "train", "run.toml", "--out", "run", "--json").must_end_well()
    (folder / "users.csv").write_text("user\n" + "".join(f"u{i}\n" for i in range(20)))
    _make_rest(folder, "users.csv", "scores.parquet")


def _make_rest(folder: Path, file: str, scores: str) -> None:
    shutil.copytree(folder / "run", folder / "stopped")
    for later in list_checkpoints(folder / "stopped" / "checkpoint")[2:]:
        shutil.rmtree(later)
    call(folder, "export", "run", "exported").must_end_well()
    call(folder, "export", "stopped", "exported-stopped").must_end_well()
    call(folder, "predict", "exported", file, "--out", scores).must_end_well()


def _trained_store() -> RowStore:
    store = LocalStore([_TABLE])
    store.bind(AdagradRule(0.1))
    draw = torch.Generator().manual_seed(1)
    for _ in range(3):
        store.add(torch.arange(0, 200, 3), torch.randn(67, 4, generator=draw))
    return store


def _load_rows(folder: Path) -> None:
    store = LocalStore([_TABLE])
    store.bind(AdagradRule(0.1))
    load_rows(store, folder / "rows")
    (part,) = store.parts()
    save_file({name: value.clone() for name, value in part.tensors.items()}, folder / "loaded")


def _resume(folder: Path, base: Path) -> Done:
    words = ("train", "run.toml", "--out", "stopped", "--resume", "--json")
    done = call(folder, *words).must_end_well_or_in_a_line()
    if done.code == 0:
        found = first_difference(contents(folder / "stopped"), contents(base / "run"))
        require(found is None, f"resumed without a word, with another result at {found}")
    return done


def _export(folder: Path, base: Path) -> Done:
    done = call(folder, "export", "stopped", "again").must_end_well_or_in_a_line()
    if done.code == 0:
        _require_same_export(folder / "again", base / "exported-stopped")
    require(done.code == 0 or not (folder / "again").exists(), "half an export was left behind")
    return done


def _require_same_export(one: Path, other: Path) -> None:
    for path in other.iterdir():
        same = (one / path.name).read_bytes() == path.read_bytes()
        require(same or path.name in _UNREAD, f"exported without a word, {path.name} differs")


def _predict(folder: Path, base: Path) -> Done:
    file = "clicks.csv" if (folder / "clicks.csv").exists() else "users.csv"
    words = ("predict", "exported", file, "--out", "again.parquet")
    done = call(folder, *words).must_end_well_or_in_a_line()
    if done.code == 0:
        same = (folder / "again.parquet").read_bytes() == (base / "scores.parquet").read_bytes()
        require(same, "other scores without a word")
    return done


def _train(folder: Path, base: Path) -> Done:
    """Train from the encoded data; damaged data may be encoded again."""
    words = ("train", "run.toml", "--out", "again", "--json")
    done = call(folder, *words).must_end_well_or_in_a_line()
    if done.code == 0:
        found = first_difference(contents(folder / "again"), contents(base / "run"))
        require(found is None, f"trained without a word, with another result at {found}")
    return done


def _compare(folder: Path, base: Path) -> Done:
    done = call(folder, *_GRID).must_end_well_or_in_a_line()
    if done.code == 0:
        for path in (base / "grid" / "cells").glob("*/result.json"):
            mine, theirs = (
                json.loads(found.read_text()) for found in (folder / path.relative_to(base), path)
            )
            for metrics in ("validation", "test"):
                same = mine.get(metrics) == theirs.get(metrics)
                require(same, f"{path.parent.name} has other metrics without a word")
    return done


def _load(folder: Path, base: Path) -> Done:
    (folder / "loaded").unlink()
    done = call_function(folder, "load_rows", lambda: _load_rows(folder))
    done.must_end_well_or_in_a_line()
    if done.code == 0:
        found = first_difference(load_file(folder / "loaded"), load_file(base / "loaded"))
        require(found is None, f"loaded other rows without a word: {found}")
    return done


READERS: dict[str, tuple[Callable[[Path, Path], Done], ...]] = {
    "stopped": (_resume, _resume, _export),
    ".outsize-cache": (_train, _export),
    "exported": (_predict,),
    "grid": (_compare,),
    "rows": (_load,),
}
"""Who reads the files of a folder."""


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Damage one file, let one command read it, and compare its results with the undamaged."""
    name, make = trial.draw.choice([("clicks", make_clicks), ("pairs", make_pairs)])
    base = trial.base(f"damage-{name}", make)
    shutil.copytree(base, trial.folder, dirs_exist_ok=True)
    area = trial.draw.choice([area for area in READERS if (base / area).exists()])
    files = sorted(path for path in (trial.folder / area).rglob("*") if path.is_file())
    path = trial.draw.choice(files)
    reader = trial.draw.choice(READERS[area])
    way = damage(path, files, trial.draw)
    describe(f"{name}: {path.relative_to(trial.folder)} {way}, then {reader.__name__[1:]}")
    done = reader(trial.folder, base)
    if done.code == 0:
        return SURVIVED, ""
    line = done.refusal
    names = (path.name, path.parent.name)
    require(any(name in line for name in names), f"the line does not name the file: {line}")
    return REFUSED, line


def damage(path: Path, others: list[Path], draw: random.Random) -> str:
    """Damage a file in a random way, which is returned."""
    content = path.read_bytes()
    same_kind = [one for one in others if one.suffix == path.suffix and one != path]
    ways = ["cut", "flipped", "flipped", "emptied", "deleted", "random bytes"]
    way = draw.choice([*ways, "replaced"] if same_kind else ways)
    if way == "deleted":
        path.unlink()
    elif way == "emptied" or not content:
        path.write_bytes(b"" if way == "emptied" else b"x")
    elif way == "cut":
        path.write_bytes(content[: draw.randrange(len(content))])
    elif way == "flipped":
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        changed = bytes([content[place] ^ (1 << bit)])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        way = f"flipped at byte {place}, bit {bit}"
    elif way == "random bytes":
        path.write_bytes(draw.randbytes(draw.choice([len(content), draw.randrange(5_000)])))
    else:
        other = draw.choice(same_kind)
        path.write_bytes(other.read_bytes())
        way = f"replaced by {other.parent.name}/{other.name}"
    return way
