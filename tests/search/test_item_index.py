import shutil
import threading

import numpy as np
import processes
import pytest
import torch

from outsize.errors import ConfigError, DataError, ItemIndexError
from outsize.search import ItemIndex, Repair
from outsize.search.index_folder import IndexFolder

KEYS = ["a", "ß", "c c", "d"]
VECTORS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]])


@pytest.fixture
def index(tmp_path):
    with ItemIndex.create(tmp_path / "index", 2) as made:
        made.write(KEYS, VECTORS, "v1")
        yield made


def test_the_best_items_come_first_with_their_scores_and_versions(index):
    found = index.search(torch.tensor([[1.0, 0.5], [0.0, -1.0]]), 3)
    assert found.keys == [["c c", "a", "ß"], ["a", "d", "ß"]]  # a and d tie: a was written first
    assert found.scores.tolist() == [[1.5, 1.0, 0.5], [0.0, 0.0, -1.0]]
    assert found.versions == [["v1"] * 3] * 2
    assert index.asked(KEYS) == [2, 2, 1, 1]


def test_fewer_items_than_asked_for_leave_the_rest_empty(tmp_path):
    with ItemIndex.create(tmp_path / "index", 2) as index:
        found = index.search(torch.ones(2, 2), 3)
        assert found.keys == [[], []]
        assert found.scores.tolist() == [[-np.inf] * 3] * 2
        index.write(["x"], torch.ones(1, 2), "v1")
        assert index.search(torch.ones(0, 2), 3).keys == []
        assert index.search(torch.ones(1, 2), 3).keys == [["x"]]
        assert index.search(torch.full((1, 2), torch.nan), 3).keys == [[]]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_what_was_written_is_there_when_it_is_opened_again(tmp_path, precision):
    vectors = torch.randn(50, 7, generator=torch.Generator().manual_seed(0))
    keys = [f"item {i}" for i in range(50)]
    with ItemIndex.create(tmp_path / "index", 7, precision) as made:
        made.write(keys, vectors, "v1")
        made.search(vectors[:5], 2)
        asked = made.asked(keys)
    opened = ItemIndex.open(tmp_path / "index", dim=7)
    assert (opened.precision, len(opened), opened.keys()) == (precision, 50, keys)
    torch.testing.assert_close(opened.read(keys), vectors, atol=0.03, rtol=0.02)
    assert sum(asked) == 10
    assert opened.asked(keys) == asked
    assert "item 3" in opened
    assert "item 50" not in opened


def test_a_replaced_item_has_its_new_vector_and_its_old_count(index):
    index.search(VECTORS, 1)
    before = index.asked(["ß"])
    index.write(["ß", "e"], torch.tensor([[3.0, 3.0], [4.0, 4.0]]), "v2")
    assert index.read(["ß"]).tolist() == [[3.0, 3.0]]
    assert index.asked(["ß", "e"]) == [*before, 0]
    assert index.versions() == {"v1": 3, "v2": 2}
    assert index.versions_of(["a", "ß"]) == ["v1", "v2"]
    assert index.search(torch.ones(1, 2), 2).keys == [["e", "ß"]]


def test_deleted_items_are_gone(index):
    index.delete(["c c", "a"])
    assert index.keys() == ["ß", "d"]
    assert index.search(torch.ones(1, 2), 4).keys == [["ß", "d"]]
    with pytest.raises(DataError, match="the index has no item 'a'"):
        index.delete(["a"])


def test_what_cannot_be_written_changes_nothing(index):
    generation = index.state.manifest.generation
    for keys, vectors, why in [
        (["x", "x"], torch.ones(2, 2), "'x' occurs more than once"),
        (["x"], torch.ones(2, 2), "2 vectors for 1 keys"),
        (["x"], torch.ones(1, 3), r"shape \(1, 3\) do not fit an index of dim 2"),
        (["x", "y"], torch.tensor([[1.0, 1.0], [torch.nan, 1.0]]), "vector of 'y' is not finite"),
    ]:
        with pytest.raises(DataError, match=why):
            index.write(keys, vectors, "v2")
    index.write([], torch.ones(0, 2), "v2")
    assert index.state.manifest.generation == generation


def test_what_could_not_be_read_again_is_not_written(index, tmp_path, unchecked_shapes):
    one = torch.ones(1, 2)
    for keys, vectors, version, why in [
        (["x"], one, 3, "a version must be text, but got 3"),
        (["x"], one, None, "a version must be text, but got None"),
        ([7], one, "v2", "a key must be text in UTF-8, but got 7"),
        ([b"x"], one, "v2", "a key must be text in UTF-8, but got b'x'"),
        (["\ud800"], one, "v2", r"a key must be text in UTF-8, but got '\\ud800'"),
        (["x"], one.numpy(), "v2", "vectors must be a tensor, but got ndarray"),
    ]:
        with pytest.raises(DataError, match=why):
            index.write(keys, vectors, version)
    with pytest.raises(DataError, match="a version must be text, but got 3"):
        index.refresh(lambda keys: torch.ones(len(keys), 2), 3, 2)
    with pytest.raises(DataError, match="a version must be text, but got 3"):
        index.search(one, 2, repair=Repair(lambda keys: torch.ones(len(keys), 2), 3))
    assert ItemIndex.open(index.path).keys() == KEYS
    with pytest.raises(ConfigError, match=r"dim must be an int >= 1, but got 2.0"):
        ItemIndex.create(tmp_path / "other", 2.0)


def test_settings_that_cannot_be_are_refused(index, tmp_path):
    with pytest.raises(ConfigError, match="dim must be an int >= 1, but got 0"):
        ItemIndex.create(tmp_path / "other", 0)
    with pytest.raises(ConfigError, match="precision must be one of float32, bfloat16, int8"):
        ItemIndex.create(tmp_path / "other", 2, "float16")
    with pytest.raises(ConfigError, match="already holds an index"):
        ItemIndex.create(index.path, 2)
    with pytest.raises(ConfigError, match="is not empty"):
        ItemIndex.create(tmp_path, 2)
    with pytest.raises(ItemIndexError, match="holds no item index"):
        ItemIndex.open(tmp_path)
    with pytest.raises(ItemIndexError, match="holds no item index"):
        ItemIndex.open(tmp_path / "nowhere", writable=True)
    with pytest.raises(ItemIndexError, match="an index of dim 2, but vectors have dim 3"):
        ItemIndex.open(index.path, dim=3)
    with pytest.raises(ConfigError, match="k must be >= 1"):
        index.search(torch.ones(1, 2), 0)
    with pytest.raises(ConfigError, match="factor must be >= 1"):
        Repair(lambda keys: VECTORS, "v2", 0)


def test_one_process_writes_and_others_read_what_they_opened(index):
    reader = ItemIndex.open(index.path)
    with pytest.raises(ConfigError, match="another process writes to the index"):
        ItemIndex.open(index.path, writable=True)
    with pytest.raises(ConfigError, match="open it with writable=True"):
        reader.write(["x"], torch.ones(1, 2), "v1")
    index.write(["x"], torch.ones(1, 2), "v2")
    index.delete(["a"])
    assert reader.keys() == KEYS
    assert reader.search(torch.tensor([[1.0, 0.0]]), 1).keys == [["a"]]
    reader.reload()
    assert reader.keys() == index.keys() == ["ß", "c c", "d", "x"]
    index.close()
    with ItemIndex.open(index.path, writable=True) as other:
        other.delete(["x"])


def test_an_index_that_another_process_has_made_meanwhile_is_not_emptied(tmp_path, monkeypatch):
    real_lock = IndexFolder.lock

    def late(folder):
        monkeypatch.undo()
        with ItemIndex.create(tmp_path / "index", 2) as other:
            other.write(["a"], torch.ones(1, 2), "v1")
        return real_lock(folder)

    monkeypatch.setattr(IndexFolder, "lock", late)
    with pytest.raises(ConfigError, match="already holds an index: open it"):
        ItemIndex.create(tmp_path / "index", 2)
    assert ItemIndex.open(tmp_path / "index").keys() == ["a"]


def test_readers_find_a_whole_state_while_a_writer_replaces_it(index):
    failures = []

    def read():
        for _ in range(40):
            try:
                opened = ItemIndex.open(index.path)
                vectors = opened.read(opened.keys())
                if not bool((vectors == vectors[0]).all()):
                    failures.append("two writes are mixed")
            except Exception as error:
                failures.append(repr(error))

    index.write(KEYS, torch.zeros(4, 2), "v2")
    thread = threading.Thread(target=read)
    thread.start()
    number = 0
    while thread.is_alive():
        number += 1
        index.write(KEYS, torch.full((4, 2), float(number)), "v2")
    thread.join()
    assert failures == []


def test_an_index_is_opened_by_another_process_without_a_lock(index):
    code = (
        "import sys, torch; from outsize.search import ItemIndex; "
        "print(ItemIndex.open(sys.argv[1]).search(torch.tensor([[0.0, 1.0]]), 1).keys)"
    )
    done = processes.run("-c", code, index.path)
    assert done.stdout.strip() == "[['ß']]", done.stderr


def test_a_reader_reads_only_new_files_and_refuses_another_index(tmp_path):
    vectors = torch.eye(3)
    with ItemIndex.create(tmp_path / "index", 3) as index:
        index.write([f"many {i}" for i in range(99)], torch.zeros(99, 3), "v1")
        reader = ItemIndex.open(tmp_path / "index")
        (first,) = (tmp_path / "index").glob("rows-*")
        with first.open("r+b") as file:  # it was verified when it was opened
            file.seek(-1, 2)
            file.write(b"x")
        index.write(["c"], vectors[2:], "v1")
        reader.reload()
        assert reader.search(vectors[2:], 1).keys == [["c"]]
        with pytest.raises(ItemIndexError, match="its checksum is not the one written"):
            ItemIndex.open(tmp_path / "index")
    shutil.rmtree(tmp_path / "index")
    with ItemIndex.create(tmp_path / "index", 2):
        pass
    with pytest.raises(ItemIndexError, match="was replaced by one of dim 2 in float32"):
        reader.reload()
    assert reader.dim == 3
