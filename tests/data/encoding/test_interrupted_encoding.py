import fcntl

import pytest

from outsize.data import InteractionsConfig, TabularConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import encode as passes
from outsize.data.encoding import sources, verification
from outsize.interrupts import StopRequested, stopping_when


@pytest.fixture(autouse=True)
def several_blocks_per_file(monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 1024)


def config_of(path):
    return TabularConfig((str(path),), "label", standardize=("price",), categorical=("city",))


def folders(path):
    return sorted(folder.name for folder in path.parent.glob(".outsize-cache/*/"))


class StopsAfter:
    """Asks to stop once it was asked so many times."""

    def __init__(self, times):
        self.left = times

    def __call__(self):
        self.left -= 1
        return self.left < 0


def test_an_encoding_stops_after_a_block_and_leaves_nothing_that_is_trusted(path):
    with stopping_when(StopsAfter(2)), pytest.raises(StopRequested):
        config_of(path).build()
    assert folders(path) == []
    data = config_of(path).build()
    assert sum(data.num_examples(split) for split in SPLITS) == 500


def test_an_encoding_stopped_in_its_second_pass_goes_on_after_the_first(path, monkeypatch):
    blocks = []
    observe = passes._FirstPass.observe
    monkeypatch.setattr(passes._FirstPass, "observe", lambda *a: (blocks.append(1), observe(*a))[1])
    whole = config_of(path).build().folder
    expected = {file.name: file.read_bytes() for file in whole.iterdir()}
    num_blocks = len(blocks)
    assert num_blocks > 4
    (whole / "manifest.json").unlink()
    with stopping_when(StopsAfter(num_blocks + 2)), pytest.raises(StopRequested):
        config_of(path).build()
    (partial,) = path.parent.glob(".outsize-cache/*.partial")
    assert sorted(file.name for file in partial.iterdir()) == ["learned.json", "learned.npz"]
    blocks.clear()
    again = config_of(path).build().folder
    assert blocks == []
    assert {file.name: file.read_bytes() for file in again.iterdir()} == expected


def test_comparing_checksums_stops_after_a_block(path, monkeypatch):
    folder = config_of(path).build().folder
    folder.with_name(f"{folder.name}.verified.json").unlink()
    monkeypatch.setattr(verification, "_BLOCK_BYTES", 64)
    with stopping_when(StopsAfter(3)), pytest.raises(StopRequested):
        config_of(path).build()
    assert config_of(path).build().folder == folder


def test_waiting_for_another_process_that_encodes_can_be_stopped(path):
    folder = config_of(path).build().folder
    (folder / "manifest.json").unlink()
    with folder.with_name(f"{folder.name}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with stopping_when(StopsAfter(0)), pytest.raises(StopRequested):
            config_of(path).build()
    assert config_of(path).build().folder == folder


def test_reading_pairs_stops_after_a_block(path):
    config = InteractionsConfig((str(path),), query="city", item="price")
    with stopping_when(StopsAfter(2)), pytest.raises(StopRequested):
        config.build()
    assert config.build().num_pairs("train") > 0
