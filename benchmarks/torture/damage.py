"""Damaged files: each is refused by name, replaced by an older one, or does not matter."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.torture.children import Done, call, call_function
from benchmarks.torture.commands import (
    COMMANDS,
    done_by,
    make_stopped,
    same_export,
    same_grid,
    stopped,
)
from benchmarks.torture.runs import PAIRS, contents, first_difference, write_pairs, write_run
from benchmarks.torture.trial import REFUSED, SURVIVED, Trial, require
from outsize.contracts import RowStore
from outsize.kernels.rows.updates import AdagradRule
from outsize.spec import TableSpec
from outsize.stores import LocalStore
from outsize.stores.row_files import load_rows, save_rows

_TABLE = TableSpec("ad", num_rows=200, dim=4)


def make_pairs(folder: Path) -> None:
    """A retrieval run, its export, what it finds, and the same run half-way."""
    write_pairs(folder / "pairs.csv")
    write_run(folder / "run.toml", PAIRS)
    (folder / "users.csv").write_text("user\n" + "".join(f"u{i}\n" for i in range(20)))
    call(folder, "train", "run.toml", "--out", "run", "--json").must_end_well()
    call(folder, "export", "run", "exported").must_end_well()
    words = ("predict", "exported", "users.csv", "--out", "scores.parquet")
    call(folder, *words).must_end_well()
    make_stopped(folder)


def make_rows(folder: Path) -> None:
    """Rows of a store, as `save_rows` writes them, and what `load_rows` makes of them."""
    save = call_function(folder, "save_rows", lambda: save_rows(_trained_store(), folder / "rows"))
    save.must_end_well()
    call_function(folder, "load_rows", lambda: _load_rows(folder)).must_end_well()


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
        same_export(folder / "again", base / "exported-stopped")
    require(done.code == 0 or not (folder / "again").exists(), "half an export was left behind")
    return done


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
    done = call(folder, *COMMANDS["compare"].words).must_end_well_or_in_a_line()
    if done.code == 0:
        same_grid(folder / "grid", base / "grid")
    return done


def _load(folder: Path, base: Path) -> Done:
    (folder / "loaded").unlink()
    done = call_function(folder, "load_rows", lambda: _load_rows(folder))
    done.must_end_well_or_in_a_line()
    if done.code == 0:
        found = first_difference(load_file(folder / "loaded"), load_file(base / "loaded"))
        require(found is None, f"loaded other rows without a word: {found}")
    return done


READERS: dict[str, tuple[tuple[str, Callable[[Path, Path], Done]], ...]] = {
    "stopped": (("stopped", _resume), ("stopped", _resume), ("stopped", _export),
                (".outsize-cache", _train), (".outsize-cache", _export)),
    "predict": (("exported", _predict),),
    "compare": (("grid", _compare),),
    "pairs": (("stopped", _resume), ("stopped", _export), ("exported", _predict)),
    "rows": (("rows", _load),),
}  # fmt: skip
"""The folders that are damaged and who reads them, by base."""


def _base(trial: Trial, name: str) -> Path:
    if name in COMMANDS:
        return done_by(trial, name)
    if name == "stopped":
        return stopped(trial)
    return trial.base(name, make_pairs if name == "pairs" else make_rows)


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Damage one file, let one command read it, and compare its results with the undamaged."""
    name = trial.draw.choice(["stopped", "stopped", "stopped", "predict", "compare", "pairs",
                              "pairs", "rows"])  # fmt: skip
    base = _base(trial, name)
    shutil.copytree(base, trial.folder, dirs_exist_ok=True)
    area, reader = trial.draw.choice(READERS[name])
    files = sorted(path for path in (trial.folder / area).rglob("*") if path.is_file())
    path = trial.draw.choice(files)
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
