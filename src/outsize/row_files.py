"""Rows of a store as files: each rank writes those it keeps, any number of ranks reads them.

`rows-00001-of-00004.safetensors` holds what rank 1 of 4 keeps: for each table `<table>/rows`,
`<table>/clocks` and `<table>/state.<name>` (names of tables escaped as in RFC 6901), and under
`/rank/<name>` what that rank alone knows. `rows.json` says how large the tables are and which rows
each rank has: every n-th from a first one on. A rank that loads finds the rows it keeps in
whichever files have them, so neither the number of ranks nor the kind of store has to be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outsize.checkpoint import WriteFiles, open_tensors, read_manifest
from outsize.contracts import RowStore, TablePart
from outsize.errors import CheckpointError, ConfigError
from outsize.files import write_json
from outsize.rank_files import (
    copy_lines,
    rank_file,
    read_tensors,
    require_new_folder,
    verified_rank_file,
    write_folder,
    write_rank_file,
)
from outsize.ranks.collectives import failing_together, gather_values, rank, world_size
from outsize.row_index import (
    INDEX,
    common_rows,
    rank_name,
    read_index,
    require_indexed,
    rows_of,
    tensor_name,
)


def save_rows(store: RowStore, folder: str | Path) -> None:
    """Write all rows of a store, with their clocks and optimizer state; entered by all ranks.

    Updates that are still held back are applied first. The folder is complete or absent.

    Args:
        store: What to write.
        folder: Where to; new, or empty, and the same folder for all ranks.
    """
    final = require_new_folder(folder, "the rows")
    store.flush()
    write_folder(final, rows_writer(store))


@torch.no_grad()
def load_rows(
    store: RowStore,
    folder: str | Path,
    *,
    allow_new: bool = False,
    allow_dropped: bool = False,
) -> dict[str, int]:
    """Bring back rows that any number of ranks saved, into any store; entered by all ranks.

    Every file a rank reads is verified first, and nothing is changed on any rank where something
    does not fit: a table that has fewer rows than were saved, another width or type, or an
    optimizer with other state. A table may have grown: its new rows keep what they have, which for
    a store just made are fresh values, clock 0 and fresh optimizer state. What ranks alone know
    besides rows, such as which rows have copies in a cache, comes back if as many ranks saved it
    with the same tables, the same rows on each rank and caches of the same size and policy; it is
    left out otherwise, on all ranks, and caches begin empty.

    Args:
        store: Where to; its optimizer has to be made before.
        folder: What `save_rows` wrote, or a checkpoint of a run.
        allow_new: Let tables that were not saved keep what they have.
        allow_dropped: Leave out saved tables that the store has not.

    Returns:
        For each table how many of its rows were not saved.
    """
    folder = Path(folder)
    with failing_together(CheckpointError):
        files = read_manifest(folder, INDEX)
        index = read_index(folder, files)
        _require_fit(index, store, folder, allow_new, allow_dropped)
        known = _rank_state(index, store, folder, files)
        for source in _needed(index, store.parts()):
            require_indexed(_verified(folder, source, index, files), index, source)
        fits = known is not None and store.fits_rank_state(known)
    fits = all(gather_values(fits))
    store.flush()
    with failing_together(CheckpointError):
        parts = store.parts()
        for source in _needed(index, parts):
            with open_tensors(folder / _file_name(source, index["num_ranks"])) as tensors:
                for part in parts:
                    saved = index["ranks"][source]["tables"].get(part.table)
                    if saved is not None:
                        _copy_rows(tensors, rows_of(saved), part)
        if fits and known:
            store.load_rank_state(known)
    saved_rows = {name: table["num_rows"] for name, table in index["tables"].items()}
    return {s.name: s.num_rows - saved_rows.get(s.name, 0) for s in store.layout.specs}


def rows_writer(store: RowStore) -> WriteFiles:
    """What writes a store's rows into a checkpoint; `flush` before. Entered by all ranks."""
    index = make_index(store, gather_values(describe_rank(store)))

    def write(folder: Path) -> Mapping[str, Mapping[str, Any]]:
        files = write_rank(folder, store, rank(), world_size())
        if rank() == 0:
            files[INDEX] = write_json(folder / INDEX, index)
        return files

    return write


def describe_rank(store: RowStore) -> dict[str, Any]:
    """Which rows a rank saves, and the names of what it alone knows."""
    tables = {
        part.table: {"first": part.first, "every": part.every, "num_rows": part.num_rows}
        for part in _saved_parts(store)
    }
    return {"tables": tables, "state": sorted(store.rank_state())}


def make_index(store: RowStore, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `rows.json` holds: the tables, and which rows each rank saves.

    Args:
        store: Any rank's.
        ranks: What `describe_rank` says on each.
    """
    tables: dict[str, Any] = {}
    for part in store.parts():
        num_rows = store.layout.spec(part.table).num_rows
        shares = [r["tables"][part.table] for r in ranks if part.table in r["tables"]]
        num_saved = sum(share["num_rows"] for share in shares)
        firsts = [share["first"] for share in shares if share["num_rows"]]
        if num_saved != num_rows or len(set(firsts)) < len(firsts):
            raise ConfigError(
                f"table {part.table!r} has {num_rows:,} rows, but the ranks would save "
                f"{num_saved:,}: ranks that hold the same rows need a ReplicatedStore"
            )
        tables[part.table] = {"num_rows": num_rows, "tensors": _kinds(part)}
    return {"num_ranks": len(ranks), "tables": tables, "ranks": list(ranks)}


def write_rank(folder: Path, store: RowStore, index: int, count: int) -> dict[str, dict[str, Any]]:
    """Write the file of one of `count` ranks, if it has something to save; its size and SHA-256."""
    tensors = {
        tensor_name(part.table, name): tensor
        for part in _saved_parts(store)
        for name, tensor in part.tensors.items()
    }
    tensors |= {rank_name(name): tensor for name, tensor in sorted(store.rank_state().items())}
    if not tensors:
        return {}
    return write_rank_file(folder, _file_name(index, count), tensors)


def _verified(
    folder: Path, source: int, index: Mapping[str, Any], files: Mapping[str, Any]
) -> Path:
    """The file of one rank, which must be the one that was written."""
    return verified_rank_file(folder, _file_name(source, index["num_ranks"]), files)


def _rank_state(
    index: Mapping[str, Any], store: RowStore, folder: Path, files: Mapping[str, Any]
) -> dict[str, Tensor] | None:
    """What this rank alone knew, if it had the same rows of the same tables; `None` if not."""
    tables = [(name, table["num_rows"]) for name, table in index["tables"].items()]
    if index["num_ranks"] != world_size() or tables != [
        (spec.name, spec.num_rows) for spec in store.layout.specs
    ]:
        return None
    saved = index["ranks"][rank()]
    if saved["tables"] != describe_rank(store)["tables"]:
        return None
    if not saved["state"]:
        return {}
    names = {rank_name(name): name for name in saved["state"]}
    found = read_tensors(_verified(folder, rank(), index, files), list(names))
    return {names[name]: value for name, value in found.items()}


def _require_fit(
    index: Mapping[str, Any],
    store: RowStore,
    folder: Path,
    allow_new: bool,
    allow_dropped: bool,
) -> None:
    """Refuse what cannot be loaded, naming the table and the way out."""
    here, saved = {part.table: part for part in store.parts()}, index["tables"]
    new, dropped = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
    if new and not allow_new:
        raise CheckpointError(
            f"table {new[0]!r} is not in {folder}, which holds {', '.join(map(repr, saved))}: "
            "pass allow_new=True to let it keep fresh rows"
        )
    if dropped and not allow_dropped:
        raise CheckpointError(
            f"{folder} holds table {dropped[0]!r}, which this store has not: "
            "pass allow_dropped=True to leave it out"
        )
    for table in sorted(here.keys() & saved.keys()):
        num_rows = store.layout.spec(table).num_rows
        if num_rows < saved[table]["num_rows"]:
            raise CheckpointError(
                f"table {table!r} has {num_rows:,} rows, but {saved[table]['num_rows']:,} are in "
                f"{folder}: a table may grow and not shrink; make it as large"
            )
        _require_same_kinds(table, _kinds(here[table]), saved[table]["tensors"], folder)


def _require_same_kinds(
    table: str, here: Mapping[str, Any], saved: Mapping[str, Any], folder: Path
) -> None:
    for name in sorted(here.keys() | saved.keys()):
        found, expected = here.get(name), saved.get(name)
        if found == expected:
            continue
        way_out = (
            "make the optimizer that trained these rows, with its settings, before loading"
            if name.startswith("state.")
            else "make the table as it was"
        )
        raise CheckpointError(
            f"table {table!r}: {name} {_in_words(found)} in this store, but {_in_words(expected)} "
            f"in {folder}: {way_out}"
        )


def _in_words(kind: Sequence[Any] | None) -> str:
    if kind is None:
        return "is absent"
    dtype, *shape = kind
    return f"is {dtype} of width {shape[0]}" if shape else f"is {dtype}"


def _kinds(part: TablePart) -> dict[str, list[Any]]:
    """For each tensor of a table its type and the shape of a line."""
    return {
        name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape[1:]]
        for name, tensor in part.tensors.items()
    }


def _needed(index: Mapping[str, Any], parts: Sequence[TablePart]) -> Iterator[int]:
    """The ranks whose files hold rows of these parts."""
    for source, saved in enumerate(index["ranks"]):
        if any(
            common_rows(rows_of(saved["tables"][part.table]), _range_of(part))
            for part in parts
            if part.table in saved["tables"]
        ):
            yield source


def _copy_rows(tensors: Any, saved: range, part: TablePart) -> None:
    """Copy the rows of a part that a file has."""
    here = _range_of(part)
    common = common_rows(saved, here)
    if not common:
        return
    lines, rows = _places(common, saved), _places(common, here)
    for name, target in part.tensors.items():
        copy_lines(tensors.get_slice(tensor_name(part.table, name)), lines, target, rows)


def _places(some: range, rows: range) -> range:
    """Where some of the rows stand among them."""
    return range(rows.index(some[0]), rows.index(some[-1]) + 1, some.step // rows.step)


def _saved_parts(store: RowStore) -> list[TablePart]:
    return store.parts() if store.saves_parts() else []


def _range_of(part: TablePart) -> range:
    return range(part.first, part.first + part.every * part.num_rows, part.every)


def _file_name(index: int, count: int) -> str:
    return rank_file("rows", index, count)
