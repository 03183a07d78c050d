"""Rows saved by any number of ranks load on any other, into tables that may have grown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

import outsize
from outsize import rank_files
from outsize.contracts import RowStore, RowUpdate, Shard
from outsize.errors import CheckpointError, ConfigError
from outsize.files import write_json, write_tensors
from outsize.kernels.rows.updates import AdagradRule, AdamRule, SGDRule, UpdateRule
from outsize.spec import TableSpec
from outsize.stores import CachedStore, LocalStore, ReplicatedStore, row_files
from outsize.stores.row_files import describe_rank, load_rows, make_index, save_rows
from outsize.stores.row_index import common_rows
from outsize.verified_folders import write_together

RULE = AdagradRule(learning_rate=0.1, initial_sum=0.25)
SPECS = [TableSpec("wide", 13, 4), TableSpec("thin", 5, 2), TableSpec("other", 2, 4)]
LARGER = [TableSpec("wide", 17, 4), TableSpec("thin", 5, 2), TableSpec("other", 9, 4)]


def fresh(specs: Sequence[TableSpec], rule: UpdateRule | None = RULE, **options) -> LocalStore:
    store = LocalStore(specs, seed=3, **options)
    if rule is not None:
        store.bind(rule)
    return store


def shards(specs: Sequence[TableSpec], count: int, **options) -> list[LocalStore]:
    return [fresh(specs, shard=Shard(index, count), **options) for index in range(count)]


def fill(store: RowStore) -> None:
    """Give every number of a store a value that says where it belongs."""
    for part in store.parts():
        rows = torch.arange(part.num_rows) * part.every + part.first
        for place, (name, tensor) in enumerate(sorted(part.tensors.items())):
            value = rows * 100 + 10 * place + len(part.table)
            tensor.copy_(value.view(-1, *[1] * (tensor.dim() - 1)).expand_as(tensor))
            if name != "clocks":
                tensor += torch.arange(tensor.shape[1]) / 10


def content(store: RowStore) -> dict[str, Tensor]:
    return {f"{p.table}/{n}": t.clone() for p in store.parts() for n, t in p.tensors.items()}


def assert_holds(store: RowStore, whole: RowStore) -> None:
    """Whether each part of a store is that part of the whole one, to the last bit."""
    expected = {part.table: part.tensors for part in whole.parts()}
    for part in store.parts():
        for name, tensor in part.tensors.items():
            lines = expected[part.table][name][part.first :: part.every][: part.num_rows]
            assert torch.equal(tensor, lines), (part.table, name)


def write_shards(folder: Path, stores: Sequence[RowStore]) -> None:
    """What as many ranks write together, written by this process for each of them."""
    index = make_index(stores[0], [describe_rank(store) for store in stores])

    def write(partial: Path) -> dict[str, dict[str, object]]:
        files = {"rows.json": write_json(partial / "rows.json", index)}
        for number, store in enumerate(stores):
            files |= row_files.write_rank(partial, store, number, len(stores))
        return files

    write_together(folder, write, "make room")


@pytest.fixture
def saved(tmp_path):
    """The rows of four shards in a folder."""
    stores = shards(SPECS, 4)
    for store in stores:
        fill(store)
    write_shards(tmp_path / "rows", stores)
    return tmp_path / "rows"


def refusal(error: type[Exception], store: RowStore, folder: Path, **options: bool) -> str:
    """What loading says, having changed nothing."""
    before = content(store)
    with pytest.raises(error) as caught:
        load_rows(store, folder, **options)
    after = content(store)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


RANGES = st.builds(
    lambda first, every, count: range(first, first + every * count, every),
    st.integers(0, 30),
    st.integers(1, 9),
    st.integers(0, 12),
)


@given(RANGES, RANGES)
def test_common_rows_are_those_in_both(one, other):
    assert list(common_rows(one, other)) == sorted(set(one) & set(other))


TABLES = st.lists(
    st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(TABLES, st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 40, 1 << 24]))
def test_rows_of_any_number_of_shards_load_into_any_other(tables, before, after, chunk_bytes):
    names = ["a", "b-c", "_d"]
    small = [TableSpec(names[i], rows, dim) for i, (rows, dim, _) in enumerate(tables)]
    large = [TableSpec(names[i], rows + more, dim) for i, (rows, dim, more) in enumerate(tables)]
    whole = fresh(large)
    stores = shards(small, before)
    for store in stores:
        fill(store)
    saved_whole = fresh(small)
    fill(saved_whole)
    for part, found in zip(whole.parts(), saved_whole.parts(), strict=True):
        for name, tensor in part.tensors.items():
            tensor[: found.num_rows] = found.tensors[name]
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_files, "_CHUNK_BYTES", chunk_bytes)
        write_shards(Path(root) / "rows", stores)
        for store in shards(large, after):
            new = load_rows(store, Path(root) / "rows")
            assert new == {names[i]: more for i, (_, _, more) in enumerate(tables)}
            assert_holds(store, whole)


def test_new_rows_of_a_grown_table_are_fresh(saved):
    store, untouched = fresh(LARGER), fresh(LARGER)

    assert load_rows(store, saved) == {"wide": 4, "thin": 0, "other": 7}

    for part, start in zip(store.parts(), untouched.parts(), strict=True):
        old = {"wide": 13, "other": 2, "thin": 5}[part.table]
        assert torch.equal(part.tensors["rows"][old:], start.tensors["rows"][old:])
        assert not part.tensors["clocks"][old:].any()
        assert (part.tensors["clocks"][:old] != 0).all()
        assert (part.tensors["state.sum"][old:] == 0.25).all()


@pytest.mark.parametrize("rule", [None, SGDRule(0.1), RULE, AdamRule(0.1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_store_comes_back_with_every_optimizer(tmp_path, rule, dtype):
    specs = [TableSpec("a", 7, 3, dtype=dtype), TableSpec("b", 4, 2)]
    store, other = fresh(specs, rule), ReplicatedStore(fresh(specs, rule))
    fill(store)

    save_rows(store, tmp_path / "rows")
    load_rows(other, tmp_path / "rows")

    assert_holds(other, store)
    save_rows(other, tmp_path / "again")
    assert names_in(tmp_path / "again") == names_in(tmp_path / "rows")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_files_can_be_read_by_safetensors_alone(saved):
    assert names_in(saved) == {
        "manifest.json", "rows.json", *(f"rows-0000{i}-of-00004.safetensors" for i in range(4)),
    }  # fmt: skip
    whole = fresh(SPECS)
    fill(whole)

    # "wide" and "other" lie side by side: store ids 0 to 12 and 13 to 14.
    tensors = load_file(saved / "rows-00001-of-00004.safetensors")

    assert sorted(tensors) == [
        f"{table}/{name}"
        for table in ("other", "thin", "wide")
        for name in ("clocks", "rows", "state.sum")
    ]
    assert torch.equal(tensors["wide/rows"], whole.parts()[0].tensors["rows"][1::4])
    assert torch.equal(tensors["other/rows"], whole.parts()[1].tensors["rows"][0::4])
    index = json.loads((saved / "rows.json").read_text())
    assert index["ranks"][1]["tables"]["wide"] == {"first": 1, "every": 4, "num_rows": 3}


MISFITS = {
    "fewer rows": ([TableSpec("wide", 12, 4), *SPECS[1:]], RULE, "'wide' has 12 rows, but 13"),
    "another width": ([TableSpec("wide", 13, 5), *SPECS[1:]], RULE, "'wide': rows is float32 of"),
    "another type": (
        [TableSpec("wide", 13, 4, dtype=torch.float16), *SPECS[1:]], RULE,
        "rows is float16 of width 4 in this store, but is float32 of width 4",
    ),
    "no state here": (SPECS, SGDRule(0.1), "state.sum is absent in this store"),
    "other state": (SPECS, AdamRule(0.1), "state.mean is float32 of width 4 in this store, but"),
    "state of another width": (
        SPECS, AdagradRule(0.1, row_wise=True), "state.sum is float32 of width 1 in this store",
    ),
    "no optimizer": (SPECS, None, "make the optimizer that trained these rows"),
    "a new table": ([*SPECS, TableSpec("new", 3, 4)], RULE, "table 'new' is not in"),
    "a table less": (SPECS[:2], RULE, "table 'other', which this store does not have"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(saved, case):
    specs, rule, expected = MISFITS[case]

    message = refusal(CheckpointError, fresh(specs, rule), saved)

    assert expected in message
    assert str(saved) in message
    assert " make " in message or "pass allow_" in message


def test_state_that_was_not_saved_is_refused(tmp_path):
    save_rows(fresh(SPECS, SGDRule(0.1)), tmp_path / "rows")

    assert "state.sum" in refusal(CheckpointError, fresh(SPECS), tmp_path / "rows")


def test_new_tables_keep_fresh_rows_where_that_is_allowed(saved):
    specs = [TableSpec("new", 3, 4), *SPECS]
    store, whole = fresh(specs), fresh(specs)
    for part in whole.parts():
        if part.table != "new":
            fill_like(part, SPECS)

    new = load_rows(store, saved, allow_new=True)

    assert new == {"new": 3, "wide": 0, "thin": 0, "other": 0}
    assert_holds(store, whole)


def fill_like(part, specs):
    filled = fresh(specs)
    fill(filled)
    (source,) = [other for other in filled.parts() if other.table == part.table]
    for name, tensor in part.tensors.items():
        tensor.copy_(source.tensors[name])


def test_tables_are_left_out_where_that_is_allowed(saved):
    store, whole = fresh(SPECS[:2]), fresh(SPECS[:2])
    fill(whole)

    load_rows(store, saved, allow_dropped=True)

    assert_holds(store, whole)


@pytest.mark.parametrize("damage", ["missing", "shorter", "flipped"])
@pytest.mark.parametrize("name", ["rows.json", "rows-00002-of-00004.safetensors"])
def test_a_damaged_file_is_named_and_nothing_is_changed(saved, name, damage):
    path = saved / name
    content_of_file = path.read_bytes()
    path.unlink()
    if damage == "shorter":
        path.write_bytes(content_of_file[:-1])
    elif damage == "flipped":
        middle = len(content_of_file) // 2
        flipped = bytes([content_of_file[middle] ^ 1])
        path.write_bytes(content_of_file[:middle] + flipped + content_of_file[middle + 1 :])

    message = refusal(CheckpointError, fresh(SPECS), saved)

    assert f"{saved} is damaged: {name}" in message
    assert "save it again" in message


def test_a_file_that_a_rank_does_not_need_is_not_read(saved):
    (saved / "rows-00001-of-00004.safetensors").unlink()
    # Of two ranks the second keeps odd store ids: files 1 and 3. The first needs neither.
    store, whole = fresh(SPECS, shard=Shard(0, 2)), fresh(SPECS)
    fill(whole)

    load_rows(store, saved)

    assert_holds(store, whole)
    refusal(CheckpointError, fresh(SPECS, shard=Shard(1, 2)), saved)


def test_a_checkpoint_without_rows_is_refused(tmp_path):
    folder = outsize.checkpoint.save_checkpoint(tmp_path, 1, {"a": 1})

    assert "does not list rows.json" in refusal(CheckpointError, fresh(SPECS), folder)
    refusal(CheckpointError, fresh(SPECS), tmp_path / "absent")


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")

    for folder in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(ConfigError, match="is not empty"):
            save_rows(fresh(SPECS), folder)

    assert names_in(tmp_path) == {"thesis.tex"}
    (tmp_path / "empty").mkdir()
    save_rows(fresh(SPECS), tmp_path / "empty")


def test_ranks_that_hold_the_same_rows_are_refused():
    alike = [fresh(SPECS), fresh(SPECS)]

    with pytest.raises(ConfigError, match="'wide' has 13 rows, but the ranks would save 26"):
        make_index(alike[0], [describe_rank(store) for store in alike])


class Remembers(LocalStore):
    """A store with something a rank alone knows, which notes what happens to it."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.known = {"a/b": torch.tensor([1, 2], dtype=torch.int16), "": torch.tensor(3.5)}
        self.loaded: dict[str, Tensor] | None = None
        self.num_flushes = 0

    def rank_state(self):
        return self.known

    def load_rank_state(self, state):
        self.loaded = dict(state)

    def flush(self):
        self.num_flushes += 1


def test_what_a_rank_alone_knows_comes_back_on_as_many_ranks(tmp_path):
    store, other = Remembers(SPECS), Remembers(SPECS)

    save_rows(store, tmp_path / "rows")
    load_rows(other, tmp_path / "rows")

    assert store.num_flushes == other.num_flushes == 1
    assert other.loaded is not None
    assert other.loaded.keys() == store.known.keys()
    assert all(torch.equal(other.loaded[name], store.known[name]) for name in store.known)
    assert other.loaded["a/b"].dtype == torch.int16


def test_what_a_rank_alone_knows_is_of_no_use_to_another_number(tmp_path):
    stores = [Remembers(SPECS, shard=Shard(index, 2)) for index in range(2)]
    write_shards(tmp_path / "rows", stores)
    other = Remembers(SPECS)

    load_rows(other, tmp_path / "rows")

    assert other.loaded is None
    assert_holds(other, LocalStore(SPECS))


def test_a_checkpoint_of_a_store_that_knows_nothing_loads_into_one_that_does(saved):
    store = Remembers(SPECS)
    store.bind(RULE)

    load_rows(store, saved)

    assert store.loaded is None


def cached(specs=SPECS, num_rows=12, eviction="lru"):
    store = CachedStore(LocalStore(specs), num_rows, 5, 0, eviction)
    store.bind(RULE)
    return store


def use(store):
    """Some steps, after which there are copies."""
    draws = torch.Generator().manual_seed(0)
    for _ in range(6):
        ids = torch.randint(store.layout.num_rows, (9,), generator=draws).unique()
        rows = store.exchange(None, ids).rows
        store.submit(RowUpdate(ids, tuple(map(torch.ones_like, rows)), torch.ones_like(ids)))


OTHER_CACHES = {
    "more room": {"num_rows": 18},
    "less room": {"num_rows": 4},
    "another policy": {"eviction": "lfu"},
    "a policy that knows less": {"eviction": "light-lfu"},
    "grown tables": {"specs": LARGER},
    "a table less": {"specs": [SPECS[0], SPECS[2]]},
    "a table more": {"specs": [TableSpec("new", 3, 4), *SPECS]},
    "another order": {"specs": SPECS[::-1]},
}


@pytest.mark.parametrize("case", OTHER_CACHES)
def test_a_cache_that_does_not_fit_begins_empty_and_rows_come_back(tmp_path, case):
    first, second = cached(), cached(**OTHER_CACHES[case])
    use(first)
    save_rows(first, tmp_path / "rows")

    load_rows(second, tmp_path / "rows", allow_new=True, allow_dropped=True)

    assert not any(bool((copies.ids >= 0).any()) for copies in second.copies)
    expected = {part.table: part.tensors["rows"] for part in first.parts()}
    for part in second.parts():
        if part.table in expected:
            lines = expected[part.table]
            assert torch.equal(part.tensors["rows"][: len(lines)], lines)
    use(second)


def test_a_cache_that_fits_comes_back(tmp_path):
    first, second = cached(), cached()
    use(first)
    save_rows(first, tmp_path / "rows")

    load_rows(second, tmp_path / "rows")

    found, expected = second.rank_state(), first.rank_state()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert bool((second.copies[0].ids >= 0).any())


def test_a_file_with_other_tensors_than_the_index_says_is_refused(saved):
    path = saved / "rows-00001-of-00004.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    tensors["wide/clocks"] = tensors["wide/clocks"].long()
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"][path.name] = write_tensors(path, tensors)
    (saved / "manifest.json").write_text(json.dumps(manifest))

    assert "'wide/clocks' does not have the type and shape" in refusal(
        CheckpointError, fresh(SPECS), saved
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda index: index.pop("ranks"), "ranks is missing"),
        (lambda index: index["ranks"].pop(), "it lists 3 ranks, but num_ranks is 4"),
        (lambda index: index["tables"]["wide"].update(num_rows="13"), "tables.wide.num_rows"),
    ],
)
def test_an_index_of_another_form_is_refused_in_words(saved, damage, expected):
    index = json.loads((saved / "rows.json").read_text())
    damage(index)
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["rows.json"] = write_json(saved / "rows.json", index)
    (saved / "manifest.json").write_text(json.dumps(manifest))

    assert expected in refusal(CheckpointError, fresh(SPECS), saved)


MEASURE = """
import sys, threading, time
import outsize

def used():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0]) * 1024

def peak_of(action):
    before, most, done = used(), 0, threading.Event()
    def watch():
        nonlocal most
        while not done.wait(0.002):
            most = max(most, used())
    watcher = threading.Thread(target=watch)
    watcher.start()
    action()
    done.set()
    watcher.join()
    return max(most, used()) - before

store = outsize.LocalStore([outsize.TableSpec("a", 1_500_000, 32)])
outsize.RowAdagrad(store)
print(peak_of(lambda: outsize.save_rows(store, sys.argv[1])))
print(peak_of(lambda: outsize.load_rows(store, sys.argv[1])))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_saving_and_loading_make_no_second_copy_of_the_rows(tmp_path):
    folder = tmp_path / "rows"
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True
    )
    assert folder.is_dir()
    shutil.rmtree(folder)
    peaks = [int(line) for line in result.stdout.split()]
    assert all(peak < 80 << 20 for peak in peaks), (peaks, "the rows are 192 MB")
