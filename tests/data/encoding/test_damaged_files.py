import gzip
import re

import damaged_files as files
import numpy as np
import pytest

from outsize.data.click_data import SPLITS
from outsize.errors import OutsizeError

DAMAGES = {
    **dict.fromkeys(files.TEXT, files.OF_TEXT),
    **dict.fromkeys(files.COMPRESSED, files.OF_BYTES),
    **dict.fromkeys(files.PARQUET, files.OF_BYTES),
}
CONTENT = {**files.TEXT, **files.COMPRESSED, **files.PARQUET}


def read(path):
    """The rows of a file as plain numbers, by split."""
    data = files.config_of(path).build()
    if not hasattr(data, "examples"):
        return [(b.query_rows.tolist(), b.items.tolist()) for b in data.batches("test", 8)]
    batches = [data.examples(split, 0, data.num_examples(split)) for split in SPLITS]
    return [(b.labels.tolist(), b.dense.tolist(), [len(i) for i in b.ids]) for b in batches]


def refusal(path):
    """What is said of a file that is refused; empty where it is read."""
    try:
        read(path)
    except OutsizeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CONTENT)
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path, name):
    draw = np.random.default_rng(sum(name.encode()))
    for damage in DAMAGES[name]:
        path = tmp_path / damage.__name__ / name
        path.parent.mkdir()
        path.write_bytes(damage(CONTENT[name], draw))
        said = refusal(path).replace(str(path), name)
        assert "\n" not in said, damage.__name__
        assert len(said) < 400, (damage.__name__, said)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_many_damaged_files_are_read_or_refused_in_one_line(tmp_path, seed):
    draw = np.random.default_rng(seed)
    for name in CONTENT:
        for number in range(3):
            damage = DAMAGES[name][draw.integers(len(DAMAGES[name]))]
            path = tmp_path / str(number) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(damage(CONTENT[name], draw))
            said = refusal(path).replace(str(path), name)
            assert "\n" not in said, damage.__name__
            assert len(said) < 400, (damage.__name__, said)


@pytest.mark.parametrize("name", files.TEXT)
@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"\xef\xbb\xbf" + content,
        lambda content: content.replace(b"\n", b"\r\n"),
        lambda content: content.removesuffix(b"\n"),
    ],
    ids=["byte order mark", "CRLF", "no newline at the end"],
)
def test_the_same_text_in_other_clothes_gives_the_same_rows(tmp_path, name, change):
    path, other = tmp_path / name, tmp_path / "other" / name
    other.parent.mkdir()
    path.write_bytes(files.TEXT[name])
    other.write_bytes(change(files.TEXT[name]))
    assert read(other) == read(path)


@pytest.mark.parametrize("name", ["clicks.csv", "avazu.csv", "ratings.csv", "pairs.csv"])
def test_columns_may_come_in_any_order(tmp_path, name):
    path, other = tmp_path / name, tmp_path / "other" / name
    other.parent.mkdir()
    path.write_bytes(files.TEXT[name])
    other.write_bytes(files.columns_reversed(files.TEXT[name]))
    assert read(other) == read(path)


def test_a_compressed_file_that_is_cut_anywhere_is_refused(tmp_path):
    content = files.COMPRESSED["clicks.csv.gz"]
    path = tmp_path / "clicks.csv.gz"
    for end in range(1, len(content), 29):
        path.write_bytes(content[:end])
        assert "clicks.csv.gz cannot be read as text columns" in refusal(path)


def test_a_compressed_file_with_a_wrong_checksum_is_refused(tmp_path):
    content = bytearray(gzip.compress(files.TEXT["clicks.csv"]))
    content[-6] ^= 1
    (tmp_path / "clicks.csv.gz").write_bytes(content)
    assert "cannot be read as text columns" in refusal(tmp_path / "clicks.csv.gz")


def test_a_value_with_a_newline_in_quotes_is_one_value(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_bytes(files.TEXT["clicks.csv"].replace(b",c3,", b',"c\n3",'))
    data = files.config_of(path).build()
    assert "c\n3" in data.values("city")
    assert data.bad_rows == {}


def test_values_with_newlines_may_cross_the_blocks_that_a_file_is_read_in(tmp_path, monkeypatch):
    path = tmp_path / "clicks.csv"
    path.write_bytes(re.sub(rb",c(\d+),", rb',"c\n\1\n\n",', files.TEXT["clicks.csv"]))
    monkeypatch.setattr("outsize.data.encoding.sources.BLOCK_BYTES", 100)
    data = files.config_of(path).build()
    assert data.bad_rows == {}
    assert "c\n3\n\n" in data.values("city")


def test_a_folder_or_an_empty_file_is_named(tmp_path):
    for name in CONTENT:
        (tmp_path / name).mkdir()
        assert f"{name}: no such file" in refusal(tmp_path / name)
        (tmp_path / name).rmdir()
        (tmp_path / name).touch()
        assert f"{name} is empty" in refusal(tmp_path / name)


def test_a_missing_column_of_very_many_is_named_with_the_nearest_few(tmp_path):
    path = tmp_path / "clicks.csv"
    names = [f"measurement_{i}" for i in range(3000)]
    path.write_text(",".join(["labels", *names, "city", "price", "tags"]) + "\n" + "1," * 3000)
    said = refusal(path)
    assert "has no column 'label'; it has: labels and 3,003 more" in said
    assert len(said.replace(str(path), "")) < 100


def test_rows_that_are_bad_in_many_ways_are_described_in_a_short_line(tmp_path):
    path = tmp_path / "criteo.txt"
    lines = files.TEXT["criteo.txt"].decode().splitlines()
    for i in range(31):
        cells = lines[i].split("\t")
        cells[1 + i % 13] = "many"
        lines[i] = "\t".join(cells)
    path.write_text("\n".join(lines) + "\n")
    said = refusal(path)
    assert "of 11 other kinds" in said
    assert len(said.replace(str(path), "criteo.txt")) < 400
