import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import processes
import pytest

import outsize
from outsize.data import TabularConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import VocabularyConfig, encoded_folder
from outsize.data.encoding import encode as passes
from outsize.data.encoding.splits import HashSplit, LastDaySplit, LastOfEachSplit, TimeSplit
from outsize.errors import DataError, WriteError


def build(path, **changes):
    changes = {"dense": ("price",), "categorical": ("city",), **changes}
    return TabularConfig((str(path),), "label", **changes).build()


def num_rows(data):
    return sum(data.num_examples(split) for split in SPLITS)


def test_the_second_time_nothing_is_encoded(path, encodings):
    first, second = build(path), build(path)
    assert len(encodings) == 1
    assert first.folder == second.folder
    assert first.folder.parent == path.parent / ".outsize-cache"


def test_what_changes_no_byte_encodes_nothing(path, encodings):
    build(path)
    build(path, shuffle=False, seed=4, pooling="max", max_bad_rows=0.2)
    assert len(encodings) == 1


def test_a_changed_source_is_encoded_again(path, encodings, clicks):
    build(path)
    path.write_text("".join(clicks.splitlines(keepends=True)[:401]))
    assert num_rows(build(path)) == 400
    assert len(encodings) == 2


def test_a_source_of_the_same_size_but_another_time_is_encoded_again(path, encodings):
    before = build(path)
    path.write_text(path.read_text().replace("c49", "c48"))
    os.utime(path, ns=(0, 0))
    assert build(path).vocabularies["city"] == before.vocabularies["city"] - 1


def test_another_way_of_encoding_is_kept_beside_the_first(path, encodings):
    build(path)
    few = build(path, vocabulary=VocabularyConfig(max_ids=3))
    assert few.vocabularies == {"city": 4}
    assert build(path).vocabularies == {"city": 51}
    assert len(encodings) == 2


@pytest.mark.parametrize("name", ["train-ids.bin", "manifest.json", "values-city.arrow"])
def test_a_file_that_is_missing_or_cut_short_is_made_again(path, encodings, name):
    file = build(path).folder / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    build(path)
    assert file.read_bytes() == content or name == "manifest.json"
    file.unlink()
    build(path)
    assert file.exists()
    assert len(encodings) == 3


def test_the_manifest_names_every_file_with_its_size(path):
    folder = build(path).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    sizes = {name: facts["bytes"] for name, facts in manifest["files"].items()}
    assert sizes == {
        file.name: file.stat().st_size for file in folder.iterdir() if file.suffix != ".json"
    }


def test_a_source_that_changes_while_it_is_read_is_refused(path, monkeypatch):
    encode = encoded_folder.encode

    def interfered(*arguments):
        manifest = encode(*arguments)
        path.write_text("label,price,city\n1,1,x\n")
        return manifest

    monkeypatch.setattr(encoded_folder, "encode", interfered)
    with pytest.raises(DataError, match="changed while it was read"):
        build(path)
    assert not list(path.parent.glob(".outsize-cache/*/"))


def test_a_folder_that_cannot_be_written_is_named(path, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        WriteError, match=r"could not write encoded data to .*file/clicks-.*--set data\.cache="
    ):
        build(path, cache=str(tmp_path / "file"))


def test_encoded_data_can_be_kept_elsewhere(path, tmp_path):
    assert build(path, cache=str(tmp_path / "there")).folder.parent == tmp_path / "there"


KILLED_WHILE_ENCODING = """
    import sys, time
    from outsize.data import TabularConfig
    from outsize.data.encoding import encode as passes

    write = passes._SecondPass.write
    def slow(self, rows):
        write(self, rows)
        print("writing", flush=True)
        time.sleep(60)

    passes._SecondPass.write = slow
    TabularConfig((sys.argv[1],), "label", dense=("price",), categorical=("city",)).build()
"""


def test_a_process_killed_while_encoding_leaves_nothing_that_is_trusted(path):
    script = textwrap.dedent(KILLED_WHILE_ENCODING)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    (leftover,) = path.parent.glob(".outsize-cache/*/")
    assert leftover.name.endswith(".partial")
    data = build(path)
    assert num_rows(data) == 500
    assert [folder.name for folder in path.parent.glob(".outsize-cache/*/")] == [data.folder.name]


DIES_IN_THE_SECOND_PASS = """
    import os
    from outsize.data import TabularConfig
    from outsize.data.encoding import VocabularyConfig
    from outsize.data.encoding import encode as passes
    from outsize.data.encoding.splits import *

    passes._SecondPass.write = lambda self, rows: os._exit(9)
    {config!r}.build()
"""


@pytest.mark.parametrize(
    "split",
    [
        HashSplit(),
        HashSplit("city"),
        TimeSplit("price"),
        TimeSplit("price", validation_from=200),
        LastDaySplit(),
        LastOfEachSplit("city", "price"),
    ],
    ids=repr,
)
def test_an_interrupted_encoding_goes_on_after_the_first_pass(path, tmp_path, monkeypatch, split):
    def config(cache):
        return TabularConfig(
            (str(path),), "label", standardize=("price",), categorical=("city",),
            split=split, cache=str(tmp_path / cache),
        )  # fmt: skip

    whole = config("whole").build().folder

    script = textwrap.dedent(DIES_IN_THE_SECOND_PASS).format(config=config("killed"))
    assert processes.run("-c", script).returncode == 9

    def again(*arguments):
        raise AssertionError("the first pass was taken again")

    monkeypatch.setattr(passes._FirstPass, "observe", again)
    resumed = config("killed").build().folder
    names = sorted(file.name for file in whole.iterdir())
    assert names == sorted(file.name for file in resumed.iterdir())
    for name in names:
        assert (whole / name).read_bytes() == (resumed / name).read_bytes(), name


def test_what_was_learned_from_another_source_is_learned_again(path, tmp_path):
    config = TabularConfig((str(path),), "label", categorical=("city",), cache=str(tmp_path / "c"))
    folder = config.build().folder
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.copytree(folder, partial)
    first = passes._FirstPass(config.recipe())
    first.num_rows = 123
    first.remember(partial, "another source")
    shutil.rmtree(folder)
    assert num_rows(config.build()) == 500


def test_processes_that_want_the_same_data_encode_it_once(path, encodings, monkeypatch):
    counted = encoded_folder.encode
    monkeypatch.setattr(encoded_folder, "encode", lambda *a: (time.sleep(0.3), counted(*a))[1])
    threads = [threading.Thread(target=build, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(encodings) == 1


def test_pyarrow_is_not_imported_until_it_is_used():
    script = "import sys, outsize; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_model_trains_on_a_file_and_is_the_same_when_resumed_from_it(path, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(
        f"""
        [data]
        kind = "tabular"
        path = ["{path}"]
        label = "label"
        standardize = ["price"]
        categorical = ["city"]
        [data.split]
        kind = "time"
        column = "price"
        [train]
        batch_size = 100
        [checkpoint]
        every = 2
        """
    )
    result = outsize.train(run, tmp_path / "out", quiet=True)
    assert result.steps == 4
    assert 0 < result.test["loss"] < 2
    assert outsize.train(run, tmp_path / "out", resume=True, quiet=True).test == result.test
