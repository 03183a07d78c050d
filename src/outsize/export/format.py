"""The folder of an exported model: its `config.json`, its versions, and what is wrong with it.

Format 1 held click models with full tables only. Format 2 adds tables in their compressed form, the
encoding of raw values, retrieval models and a card. Format 3 adds tables of 8-bit rows, format 4
graph models, and format 5 text models with their tokenizer and the texts of items. All are read; a
model is written in the oldest format that can hold it, which older versions read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from outsize.errors import ConfigError, ExportError, OutsizeError, one_line
from outsize.files import flaw_of, reason_of
from outsize.json_files import FILE_FACTS, Absent, Each, OneOf, SchemaError, Whole, check, read_json

Kind = TypeVar("Kind")
FORMAT = 5
READABLE = (1, 2, 3, 4, 5)
CONFIG, WEIGHTS, VOCABULARIES = "config.json", "model.safetensors", "vocabularies.safetensors"
ENCODER = "encoder"
"""The folder of an encoder that has one of its own."""

TEXTS, TOKENIZER = "texts.safetensors", "tokenizer.safetensors"
_TABLE = {
    "name": str,
    "method": str,
    "num_rows": Whole(1),
    "dim": Whole(1),
    "dtype": str,
    "settings": Absent(Each(object)),
}
_CONFIG = {
    "task": Absent(str),
    "model": {"kind": str},
    "num_dense": Absent(Whole()),
    "towers": Absent({"query_features": [str], "item_features": [str], "numbers": [str]}),
    "features": [{"name": str}],
    "tables": [_TABLE],
    "encoding": Absent(OneOf(None, Each(object))),
    "pairs": Absent(OneOf(None, Each(object))),
    "graph": Absent(Each(object)),
    "tokenizer": Absent(Each(object)),
    "texts": Absent({"facts": [str]}),
    "encoder": Absent(Each(FILE_FACTS)),
    "batch_size": Absent(Whole(1)),
    "training": Absent(Each(object)),
    "files": {WEIGHTS: FILE_FACTS},
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read and check the configuration of an exported model."""
    try:
        config: dict[str, Any] = read_json(folder / CONFIG, {"format": OneOf(int, str)})
        found = config["format"]
        if found not in READABLE:
            formats = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
            raise ExportError(
                f"{folder} has export format {found}, but this version reads formats {formats}: "
                f"load it with outsize {config.get('outsize')}, or a later version"
            )
        check(config, _CONFIG)
        check(config, {"files": Each(FILE_FACTS)})
    except (FileNotFoundError, NotADirectoryError):
        raise ExportError(
            f"{folder} holds no exported model: there is no {CONFIG}; "
            "write one with `outsize export RUN DIR`"
        ) from None
    except PermissionError as error:
        raise forbidden(folder / CONFIG, error) from error
    except OSError as error:
        raise unreadable(folder, f"{CONFIG}: {reason_of(error)}") from None
    except SchemaError as error:
        raise unreadable(folder, f"{CONFIG} is not one that an export writes: {error}") from None
    return config


def format_of(content: Mapping[str, Any]) -> int:
    """The oldest format that can hold a model, given its `config.json`."""
    if "texts" in content:
        return 5
    if content["task"] == "graph":
        return 4
    return 3 if any(facts["method"] == "int8" for facts in content["tables"]) else 2


def holds_export(folder: Path) -> bool:
    """Whether a folder has the configuration of an exported model."""
    try:
        return (folder / CONFIG).is_file()
    except OSError:
        return False


def require_whole_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the size and checksum of each file with those written."""
    for name, facts in files.items():
        if Path(name).name != name:
            raise unreadable(folder, f"{CONFIG} names a file {name!r:.60} outside of the folder")
        try:
            flaw = flaw_of(folder / name, facts)
        except PermissionError as error:
            raise forbidden(folder / name, error) from error
        if flaw:
            raise unreadable(folder, f"{name}: {flaw}")


def require_whole_encoder(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """The same for the folder of an encoder, which must hold no other files."""
    own = folder / ENCODER
    found = {path.relative_to(own).as_posix() for path in own.rglob("*") if path.is_file()}
    for name in sorted(found ^ set(files)):
        fact = "is not one that was written" if name in found else "is missing"
        raise unreadable(folder, f"{ENCODER}/{name} {fact}")
    for name, facts in files.items():
        if flaw := flaw_of(own / name, facts):
            raise unreadable(folder, f"{ENCODER}/{name}: {flaw}")


def require_free(folder: Path) -> None:
    """Raise an error if a path is a file or a folder that is not empty."""
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise ConfigError(f"{folder} is not empty: choose another folder for the export")
        elif folder.exists():
            raise ConfigError(f"{folder} is a file: choose another folder for the export")
    except OSError as error:
        raise ExportError(
            f"could not write {folder}: {reason_of(error)}; choose another folder for the export"
        ) from error


def registered(what: str, name: str, kinds: Mapping[str, Kind]) -> Kind:
    """The kind of an export's model or table; raises a `ConfigError` if there is no such name."""
    if name not in kinds:
        raise ConfigError(
            f"no {what} {name!r}; there are {', '.join(kinds)}: if it is your own, import its "
            "module first"
        )
    return kinds[name]


@contextmanager
def described(folder: Path, part: str) -> Iterator[None]:
    """Build a part of a model that its configuration describes; whatever is wrong names it."""
    try:
        yield
    except (SchemaError, OutsizeError, KeyError, TypeError, ValueError) as error:
        raise unreadable(folder, f"{part} in {CONFIG}: {one_line(error)}") from None


def disagree(folder: Path, name: str) -> ExportError:
    """The error for weights that are not those the configuration describes."""
    return unreadable(folder, f"weights and {CONFIG} disagree about {name!r}")


def forbidden(path: Path, error: OSError) -> ExportError:
    """The error for a file that may not be read."""
    return ExportError(f"{path} cannot be read: {reason_of(error)}; let this user read it")


def unreadable(folder: Path, fact: str) -> ExportError:
    """The error for a folder that cannot be loaded."""
    return ExportError(f"the model in {folder} cannot be loaded: {fact}; export it again")
