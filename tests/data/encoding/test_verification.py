import json
import os
import textwrap
import threading
from pathlib import Path

import numpy as np
import processes
import pytest

from outsize.data import EncodedClicks, TabularConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import encode as passes
from outsize.data.encoding import verification
from outsize.data.encoding.splits import LastOfEachSplit
from outsize.errors import DataError, WriteError


@pytest.fixture
def compared(monkeypatch):
    """Which files were compared with their checksums."""
    names = []
    compare = verification.EncodedFolder._compare

    def counted(self, name, *arguments):
        names.append(name)
        return compare(self, name, *arguments)

    monkeypatch.setattr(verification.EncodedFolder, "_compare", counted)
    return names


def build(path, **changes):
    changes = {"dense": ("price",), "categorical": ("city",), "multi_valued": ("tags",), **changes}
    return TabularConfig((str(path),), "label", **changes).build()


def content_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def change(file, content):
    """Write a file so that its time differs, however quick the test is."""
    after = file.stat().st_mtime_ns + 1_000_000_000 if file.exists() else 1_000_000_000
    file.write_bytes(content)
    os.utime(file, ns=(after, after))


def flip(file, place):
    content = bytearray(file.read_bytes())
    content[place % len(content)] ^= 1 << place % 8
    change(file, bytes(content))


FILES = [
    *(f"{split}-{kind}.bin" for split in SPLITS
      for kind in ("labels", "dense", "ids", "tags-values", "tags-ends")),
    "values-city.arrow", "values-tags.arrow", "manifest.json",
]  # fmt: skip
HASHED = FILES[:-1]


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_of_any_file_is_found_and_the_data_encoded_again(
    path, encodings, capsys, name
):
    folder = build(path).folder
    whole = content_of(folder)
    assert set(whole) == set(FILES)
    draw = np.random.default_rng(FILES.index(name))
    flip(folder / name, int(draw.integers(len(whole[name]))))
    capsys.readouterr()
    build(path)
    told = capsys.readouterr().err
    assert len(encodings) == 2
    assert f"is damaged ({name}: " in told
    assert told.count("\n") == 1
    assert content_of(folder) == whole


@pytest.mark.parametrize("name", ["train-tags-ends.bin", "values-city.arrow", "manifest.json"])
def test_a_file_that_is_cut_short_or_grown_or_gone_is_found(path, encodings, capsys, name):
    folder = build(path).folder
    whole = content_of(folder)
    change(folder / name, whole[name][: len(whole[name]) // 2])
    build(path)
    change(folder / name, whole[name] + whole[name][-8:])
    build(path)
    (folder / name).unlink()
    capsys.readouterr()
    build(path)
    assert f"is damaged ({name} is missing): encoding it again" in capsys.readouterr().err
    assert len(encodings) == 4
    assert content_of(folder) == whole


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m["num_examples"].update(train=-1),
        lambda m: m["num_examples"].update(train=10**12),
        lambda m: m["num_examples"].pop("test"),
        lambda m: m.update(num_dense=2),
        lambda m: m.update(num_dense=True),
        lambda m: m.update(id_type="float64"),
        lambda m: m["num_ids"].update(city=500),
        lambda m: m["num_ids"].update(city=0),
        lambda m: m["num_ids"].pop("city"),
        lambda m: m.update(categorical=["town"]),
        lambda m: m["files"].pop("train-ids.bin"),
        lambda m: m["files"].update({"../../clicks.csv": m["files"]["train-ids.bin"]}),
        lambda m: m["files"]["train-tags-values.bin"].update(bytes=3),
        lambda m: m["bad_rows"]["counts"].update(odd=1),
        lambda m: m.update(recipe="another"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_found_also_without_a_checksum(path, encodings, damage):
    folder = build(path).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    damage(manifest)
    change(folder / "manifest.json", json.dumps(manifest).encode())
    # So that the files are looked at too: a stamp says nothing about the manifest.
    change(folder / "values-city.arrow", (folder / "values-city.arrow").read_bytes())
    assert build(path).vocabularies["city"] == 51
    assert len(encodings) == 2


def test_encoded_data_of_before_there_were_checksums_of_manifests_is_read(
    path, encodings, compared
):
    folder = build(path).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["checksum"]
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    folder.with_name(f"{folder.name}.verified.json").unlink()
    build(path)
    assert sorted(compared) == sorted(HASHED)
    assert len(encodings) == 1


def test_a_folder_opened_by_hand_is_checked_as_well(path):
    folder = build(path).folder
    flip(folder / "manifest.json", 40)
    with pytest.raises(DataError, match=r"manifest\.json is damaged: .*; remove the folder") as e:
        EncodedClicks(folder)
    assert "\n" not in str(e.value)
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match="this is not encoded data"):
        EncodedClicks(folder)


def test_a_file_that_has_not_changed_is_compared_once(path, compared):
    folder = build(path).folder
    build(path)
    assert compared == []  # hashed while it was written
    change(folder / "train-ids.bin", (folder / "train-ids.bin").read_bytes())
    build(path)
    build(path)
    assert compared == ["train-ids.bin"]


def test_verify_compares_everything_always(path, compared):
    build(path)
    build(path, verify=True)
    build(path, verify=True)
    assert sorted(compared) == sorted(2 * HASHED)


def test_verify_finds_a_byte_that_changed_under_an_unchanged_time(path, encodings, monkeypatch):
    folder = build(path).folder
    monkeypatch.setattr(verification, "_stat", lambda path: [path.stat().st_size, 1, 1, 1])
    folder.with_name(f"{folder.name}.verified.json").unlink()
    build(path)  # stamped with times that never change
    flip(folder / "train-dense.bin", 7)
    build(path)
    assert len(encodings) == 1
    build(path, verify=True)
    assert len(encodings) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"train-ids.bin": 1}', b"\xff"])
def test_a_damaged_stamp_means_that_files_are_compared_again(path, compared, encodings, content):
    folder = build(path).folder
    folder.with_name(f"{folder.name}.verified.json").write_bytes(content)
    build(path)
    build(path)
    assert sorted(compared) == sorted(HASHED)
    assert len(encodings) == 1


def test_processes_that_open_the_same_data_compare_it_once(path, compared):
    folder = build(path).folder
    folder.with_name(f"{folder.name}.verified.json").unlink()
    threads = [threading.Thread(target=build, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compared) == sorted(HASHED)


@pytest.fixture
def read_only(path, monkeypatch):
    """The data with a cache in which this process, also as root, can write nothing."""
    monkeypatch.chdir(path.parent)
    folder = build(path.name).folder
    folder.with_name(f"{folder.name}.verified.json").unlink()
    folders = [Path(), folder.parent, folder]
    for each in folders:
        each.chmod(0o555)
    as_root = os.geteuid() == 0
    if as_root:
        os.seteuid(65534)
    yield folder
    if as_root:
        os.seteuid(0)
    for each in folders:
        each.chmod(0o755)


def test_a_cache_that_cannot_be_written_is_read(read_only, compared, encodings):
    assert build("clicks.csv").num_examples("train") > 0
    build("clicks.csv")
    assert sorted(compared) == sorted(2 * HASHED)
    assert not encodings


def test_a_damaged_cache_that_cannot_be_written_is_refused(read_only):
    euid = os.geteuid()
    if euid == 65534:
        os.seteuid(0)
    flip(read_only / "train-ids.bin", 5)
    os.seteuid(euid)
    with pytest.raises(WriteError, match=r"damaged \(train-ids\.bin: .*: Permission denied"):
        build("clicks.csv")


def test_damaged_data_whose_source_is_gone_is_refused_in_one_line(path):
    flip(build(path).folder / "train-ids.bin", 5)
    path.unlink()
    with pytest.raises(DataError, match=r"clicks\.csv: no such file") as caught:
        build(path)
    assert "\n" not in str(caught.value)


DIES_IN_THE_SECOND_PASS = """
    import os
    from outsize.data import TabularConfig
    from outsize.data.encoding import VocabularyConfig
    from outsize.data.encoding import encode as passes
    from outsize.data.encoding.splits import *

    passes._SecondPass.write = lambda self, rows: os._exit(9)
    {config!r}.build()
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, clicks):
    """A configuration, the folder its interrupted encoding left, and what that should become."""
    folder = tmp_path_factory.mktemp("interrupted")
    (folder / "clicks.csv").write_text(clicks)

    def config(cache):
        return TabularConfig(
            (str(folder / "clicks.csv"),), "label", standardize=("price",), categorical=("city",),
            split=LastOfEachSplit("city", "price"), cache=str(folder / cache),
        )  # fmt: skip

    whole = content_of(config("whole").build().folder)
    script = textwrap.dedent(DIES_IN_THE_SECOND_PASS).format(config=config("killed"))
    assert processes.run("-c", script).returncode == 9
    (left,) = (folder / "killed").glob("*.partial")
    return config("killed"), content_of(left), left, whole


@pytest.mark.parametrize("name", ["learned.npz", "learned.json"])
def test_what_a_damaged_first_pass_left_is_learned_again(interrupted, monkeypatch, name):
    config, kept, left, whole = interrupted
    observed = []
    observe = passes._FirstPass.observe
    monkeypatch.setattr(
        passes._FirstPass, "observe", lambda *a: (observed.append(1), observe(*a))[1]
    )
    draw = np.random.default_rng(len(name))
    for number in range(12):
        left.mkdir(exist_ok=True)
        for file, content in kept.items():
            (left / file).write_bytes(content)
        place = int(draw.integers(len(kept[name])))
        if number % 2:
            flip(left / name, place)
        else:
            (left / name).write_bytes(kept[name][:place])
        assert content_of(config.build().folder) == whole
        assert len(observed) == number + 1
        (folder,) = (path for path in left.parent.iterdir() if path.is_dir())
        folder.rename(left)  # taken away again
