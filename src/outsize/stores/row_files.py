"""Saves and loads the rows of a store; each rank writes one file, any number of ranks reads them.

`rows-00001-of-00004.safetensors` holds the rows of rank 1 of 4: for each table `<table>/rows`,
`<table>/clocks` and `<table>/state.<name>` (names of tables escaped as in RFC 6901). It also holds
the rank's own state as `/rank/<name>`. `rows.json` lists the sizes of the tables and the rows of
each rank: a first row and a stride. On loading, each rank reads its rows from the files that hold
them, so the number of ranks and the kind of store may differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from outsize.ranks.collectives import gather_values, rank, world_size
from outsize.ranks.failures import failing_together
from outsize.stores.row_index import (
    INDEX,
    common_rows,
    rank_name,
    read_index,
    require_matches_index,
    rows_of,
    tensor_name,
)
from outsize.verified_folders import WriteFiles, open_tensors, read_manifest


def save_rows(store: RowStore, folder: str | Path) -> None:
    """Save all rows of a store, with their clocks and optimizer state; all ranks call it.

    The store is flushed first. Afterwards the folder is either complete or absent.

    Args:
        store: The store to save.
        folder: A new or empty folder; the same on all ranks.
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
    """Load rows that any number of ranks saved, into any store; all ranks call it.

    Each rank verifies every file it reads before anything is changed. If something does not fit,
    all ranks raise and none changes: a table that has fewer rows than were saved, another width or
    type, or an optimizer with other state. A table may have grown: its new rows keep their values,
    which in a new store are the initial ones, with clock 0. The state of each rank besides rows,
    such as which rows have copies in a cache, is loaded if the number of ranks, the tables, the
    rows of each rank and the size and policy of its cache are those that were saved. Otherwise no
    rank loads it, and caches start empty.

    Args:
        store: The store to load into; create its optimizer first.
        folder: A folder that `save_rows` wrote, or a checkpoint of a run.
        allow_new: Let tables that were not saved keep their values.
        allow_dropped: Ignore saved tables that the store does not have.

    Returns:
        For each table, the number of its rows that were not saved.
    """
    folder = Path(folder)
    with failing_together(CheckpointError):
        files = read_manifest(folder, INDEX)
        index = read_index(folder, files)
        _require_fit(index, store, folder, allow_new, allow_dropped)
        state = _rank_state(index, store, folder, files)
        for source in _sources(index, store.parts()):
            require_matches_index(_verified(folder, source, index, files), index, source)
        fits = state is not None and store.fits_rank_state(state)
    fits = all(gather_values(fits))
    store.flush()
    with failing_together(CheckpointError):
        parts = store.parts()
        for source in _sources(index, parts):
            with open_tensors(folder / _file_name(source, index["num_ranks"])) as tensors:
                for part in parts:
                    saved = index["ranks"][source]["tables"].get(part.table)
                    if saved is not None:
                        _copy_rows(tensors, rows_of(saved), part)
        if fits and state:
            store.load_rank_state(state)
    saved_rows = {name: table["num_rows"] for name, table in index["tables"].items()}
    return {s.name: s.num_rows - saved_rows.get(s.name, 0) for s in store.layout.specs}


def rows_writer(store: RowStore) -> WriteFiles:
    """A function that writes rows into a checkpoint; flush the store first. All ranks call it."""
    index = make_index(store, gather_values(describe_rank(store)))

    def write(folder: Path) -> Mapping[str, Mapping[str, Any]]:
        files = write_rank(folder, store, rank(), world_size())
        if rank() == 0:
            files[INDEX] = write_json(folder / INDEX, index)
        return files

    return write


def describe_rank(store: RowStore) -> dict[str, Any]:
    """Which rows this rank saves, and the names of its own state."""
    tables = {
        part.table: {"first": part.first, "every": part.every, "num_rows": part.num_rows}
        for part in _saved_parts(store)
    }
    return {"tables": tables, "state": sorted(store.rank_state())}


def make_index(store: RowStore, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of `rows.json`: the tables, and the result of `describe_rank` on each rank."""
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
    """Write the file of rank `index` of `count`, unless it is empty; return size and SHA-256."""
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
    """The file of one rank, after its checksum is verified."""
    return verified_rank_file(folder, _file_name(source, index["num_ranks"]), files)


def _rank_state(
    index: Mapping[str, Any], store: RowStore, folder: Path, files: Mapping[str, Any]
) -> dict[str, Tensor] | None:
    """The saved state of this rank; `None` if it had other tables or other rows of them."""
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
    """Raise if the saved tables cannot be loaded into this store."""
    here, saved = {part.table: part for part in store.parts()}, index["tables"]
    new, dropped = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
    if new and not allow_new:
        raise CheckpointError(
            f"table {new[0]!r} is not in {folder}, which holds {', '.join(map(repr, saved))}: "
            "pass allow_new=True to keep its initial rows"
        )
    if dropped and not allow_dropped:
        raise CheckpointError(
            f"{folder} holds table {dropped[0]!r}, which this store does not have: "
            "pass allow_dropped=True to ignore it"
        )
    for table in sorted(here.keys() & saved.keys()):
        num_rows = store.layout.spec(table).num_rows
        if num_rows < saved[table]["num_rows"]:
            raise CheckpointError(
                f"table {table!r} has {num_rows:,} rows, but {saved[table]['num_rows']:,} are in "
                f"{folder}: a table may grow but not shrink; make it at least as large"
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
            else "make the table as it was saved"
        )
        raise CheckpointError(
            f"table {table!r}: {name} {_describe(found)} in this store, but {_describe(expected)} "
            f"in {folder}: {way_out}"
        )


def _describe(kind: Sequence[Any] | None) -> str:
    if kind is None:
        return "is absent"
    dtype, *shape = kind
    return f"is {dtype} of width {shape[0]}" if shape else f"is {dtype}"


def _kinds(part: TablePart) -> dict[str, list[Any]]:
    """For each tensor of a table, its type and the shape of one line."""
    return {
        name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape[1:]]
        for name, tensor in part.tensors.items()
    }


def _sources(index: Mapping[str, Any], parts: Sequence[TablePart]) -> Iterator[int]:
    """The saved ranks whose files hold rows of these parts."""
    for source, saved in enumerate(index["ranks"]):
        if any(
            common_rows(rows_of(saved["tables"][part.table]), part.rows)
            for part in parts
            if part.table in saved["tables"]
        ):
            yield source


def _copy_rows(tensors: Any, saved: range, part: TablePart) -> None:
    """Copy the rows of a part that are in a file."""
    common = common_rows(saved, part.rows)
    if not common:
        return
    lines, rows = _positions(common, saved), _positions(common, part.rows)
    for name, target in part.tensors.items():
        copy_lines(tensors.get_slice(tensor_name(part.table, name)), lines, target, rows)


def _positions(some: range, rows: range) -> range:
    """The positions of some rows within a range that contains them."""
    return range(rows.index(some[0]), rows.index(some[-1]) + 1, some.step // rows.step)


def _saved_parts(store: RowStore) -> list[TablePart]:
    return store.parts() if store.saves_parts() else []


def _file_name(index: int, count: int) -> str:
    return rank_file("rows", index, count)
