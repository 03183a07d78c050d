"""An index is in its old or its new state after a crash at any moment, and damage is noticed."""

import os
import shutil
import signal
from pathlib import Path

import processes
import pytest
import torch

from outsize.errors import ItemIndexError, WriteError
from outsize.search import ItemIndex

KEYS = [f"k{i}" for i in range(6)]


def contents(folder):
    index = ItemIndex.open(folder)
    keys = index.keys()
    return {
        key: (version, vector, asked)
        for key, version, vector, asked in zip(
            keys, index.versions_of(keys), index.read(keys).tolist(), index.asked(keys), strict=True
        )
    }


def make(folder):
    with ItemIndex.create(folder, 2) as index:
        index.write(KEYS, torch.arange(12.0).view(6, 2), "v1")


WRITES = {
    "add": lambda index: index.write(["new"], torch.ones(1, 2), "v2"),
    "replace": lambda index: index.write(KEYS[:4], torch.ones(4, 2), "v2"),
    "delete": lambda index: index.delete([key for key in KEYS[:2] if key in index]),
    "merge": lambda index: index.write(["x", "y", "z", "w"], torch.ones(4, 2), "v2"),
    "refresh": lambda index: index.refresh(lambda keys: torch.ones(len(keys), 2), "v2", 3),
    "count": lambda index: (index.search(torch.ones(1, 2), 2), index.save_counts()),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_crash_at_any_write_leaves_the_old_or_the_new_state(tmp_path, monkeypatch, write):
    folder = tmp_path / "index"
    make(folder)
    before = contents(folder)
    snapshots = []

    def snapshot():
        copy = tmp_path / f"crash-{len(snapshots)}"
        shutil.copytree(folder, copy)
        snapshots.append(copy)

    real_sync, real_replace = os.fsync, Path.replace

    def fsync(handle):
        snapshot()
        real_sync(handle)

    def replace(path, target):
        snapshot()
        found = real_replace(path, target)
        snapshot()
        return found

    with ItemIndex.open(folder, writable=True) as index:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)
        WRITES[write](index)
        monkeypatch.undo()
    after = contents(folder)
    assert after != before
    seen = []
    assert len(snapshots) >= 5
    for copy in snapshots:
        found = contents(copy)
        seen.append(found == after)
        assert found in (before, after)
        whole = {"manifest.json", *ItemIndex.open(copy).state.manifest.files}
        for path in copy.iterdir():  # what was not synced may be cut anywhere
            if path.name not in whole:
                os.truncate(path, path.stat().st_size // 2)
        assert contents(copy) == found
        with ItemIndex.open(copy, writable=True) as index:  # and can be written again
            WRITES[write](index)
            index.write(["last"], torch.ones(1, 2), "v3")
            kept = {".lock", "manifest.json", *index.state.manifest.files}
        assert {path.name for path in copy.iterdir()} == kept  # what the crash left is removed
    assert seen == sorted(seen), "the old state first, then the new one"
    assert seen[-1]


def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_index(tmp_path):
    code = (
        "import os, signal, sys, torch\n"
        "from outsize.search import ItemIndex\n"
        "index = ItemIndex.open(sys.argv[1], writable=True)\n"
        "left, sync = int(sys.argv[2]), os.fsync\n"
        "def fsync(handle):\n"
        "    global left\n"
        "    left -= 1\n"
        "    os.kill(os.getpid(), signal.SIGKILL) if left == 0 else sync(handle)\n"
        "os.fsync = fsync\n"
        "index.write(['k0', 'new'], torch.ones(2, 2), 'v2')\n"
        "index.write(['newer'], torch.ones(1, 2), 'v2')\n"
    )
    folder = tmp_path / "index"
    make(folder)
    before = contents(folder)
    done = processes.run("-c", code, folder, "2")
    assert done.returncode == -signal.SIGKILL
    assert contents(folder) == before
    done = processes.run("-c", code, folder, "6")
    assert done.returncode == -signal.SIGKILL
    assert contents(folder).keys() == {*KEYS, "new"}
    with ItemIndex.open(folder, writable=True) as index:  # the lock went with the process
        index.delete(["new"])


def test_every_file_that_is_cut_or_changed_is_named_in_one_line(tmp_path):
    folder = tmp_path / "index"
    make(folder)
    names = [path.name for path in folder.iterdir() if path.name != ".lock"]
    assert len(names) == 3
    for name in names:
        data = (folder / name).read_bytes()
        middle = len(data) // 2
        for wrong in (
            b"",
            data[:middle],
            data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        ):
            (folder / name).write_bytes(wrong)
            with pytest.raises(ItemIndexError, match=f"{name} is damaged: ") as caught:
                ItemIndex.open(folder)
            assert "\n" not in str(caught.value)
        (folder / name).unlink()
        with pytest.raises(ItemIndexError, match=r"it is missing|holds no item index"):
            ItemIndex.open(folder)
        (folder / name).write_bytes(data)
    assert contents(folder).keys() == set(KEYS)


def test_another_format_or_a_file_outside_of_the_folder_is_refused(tmp_path):
    folder = tmp_path / "index"
    make(folder)
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"format": 1', '"format": 9'))
    with pytest.raises(ItemIndexError, match="index format 9, but this version reads format 1"):
        ItemIndex.open(folder)
    manifest.write_text(text.replace("rows-", "../rows-"))
    with pytest.raises(ItemIndexError, match="its checksum is not the one written"):
        ItemIndex.open(folder)


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    make(folder)
    before = contents(folder)
    files = {path.name for path in folder.iterdir()}
    with ItemIndex.open(folder, writable=True) as index:

        def full(handle):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match="the disk is full; the index is as before"):
            index.write(["new"], torch.ones(1, 2), "v2")
        assert {path.name for path in folder.iterdir()} == files  # a full disk would stay full
        index.search(torch.ones(1, 2), 2)
        with pytest.raises(WriteError, match="the disk is full; the index is as before"):
            index.close()
        assert not index.is_writable  # without its lock
        monkeypatch.undo()
        assert index.keys() == KEYS
        assert contents(folder) == before
    with ItemIndex.open(folder, writable=True) as index:
        index.write(["new"], torch.ones(1, 2), "v2")
    assert contents(folder).keys() == {*KEYS, "new"}
