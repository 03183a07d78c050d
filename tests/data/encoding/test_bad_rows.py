import pytest

from outsize.data import TabularConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import sources
from outsize.data.encoding.splits import HashSplit
from outsize.errors import DataError

GOOD = [b"%d,%d,c%d" % (i % 2, i, i % 5) for i in range(200)]


def build(tmp_path, lines, **changes):
    path = tmp_path / "clicks.csv"
    path.write_bytes(b"\n".join([b"label,price,city", *lines, b""]))
    config = TabularConfig(
        path=(str(path),),
        label="label",
        dense=("price",),
        categorical=("city",),
        split=HashSplit(validation=0.2, test=0.2),
        **{"max_bad_rows": 0.5, **changes},
    )
    return config.build()


def with_bad(line, at=100):
    """Good lines with one bad one, which is line `at + 2` of the file, after the header."""
    return [*GOOD[:at], line, *GOOD[at:]]


KINDS = {
    "truncated": (b"1,5", "a wrong number of columns", "line 102: 2 columns, not 3"),
    "truncated bytes": (b"1,\xff\xfe", "a wrong number of columns", "line 102: 2 columns"),
    "too long": (b"1,5,x,y", "a wrong number of columns", "line 102: 4 columns, not 3"),
    "label 7": (b"7,5,x", "a label other than 0 and 1", "line 102: 7.0"),
    "label text": (b"yes,5,x", "a label in 'label' that is not a number", "line 102: 'yes'"),
    "no label": (b",5,x", "no label", "line 102"),
    "price text": (
        b"1,cheap,x",
        "a numeric value in 'price' that is not a number",
        "line 102: 'cheap'",
    ),
    "price inf": (b"1,inf,x", "a numeric value in 'price' too large", "line 102"),
    "price huge": (b"1,1e300,x", "a numeric value in 'price' too large", "line 102: '1e300'"),
    "bytes": (b"1,5,\xff\xfe", "bytes in 'city' that are not UTF-8", "line 102"),
    "bytes in price": (b"1,\xff,x", "a numeric value in 'price' that is not a number", "line 102"),
}


@pytest.mark.parametrize(("line", "kind", "where"), KINDS.values(), ids=KINDS)
def test_a_bad_row_is_skipped_and_told_with_its_line(tmp_path, capsys, line, kind, where):
    data = build(tmp_path, with_bad(line))
    assert data.bad_rows == {kind: 1}
    assert sum(data.num_examples(split) for split in SPLITS) == 200
    told = " ".join(capsys.readouterr().err.split())
    assert f"1 of 201 rows are malformed (0.50%): 1 with {kind}" in told
    assert where in told


@pytest.mark.parametrize(("line", "kind", "where"), KINDS.values(), ids=KINDS)
def test_more_bad_rows_than_allowed_are_refused_in_one_line(tmp_path, line, kind, where):
    with pytest.raises(DataError) as caught:
        build(tmp_path, with_bad(line), max_bad_rows=0.001)
    assert kind in str(caught.value)
    assert "raise max_bad_rows above 0.001" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / ".outsize-cache").glob("*[!k]"))  # nothing but the lock


def test_lines_keep_their_numbers_after_skipped_lines_and_across_blocks(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    lines = with_bad(b"7,5,x", at=150)
    lines[3] = lines[40] = b"short"
    data = build(tmp_path, lines)
    assert data.bad_rows == {"a wrong number of columns": 2, "a label other than 0 and 1": 1}
    told = " ".join(capsys.readouterr().err.split())
    assert "line 5: 1 columns" in told
    assert "line 152: 7.0" in told


def test_a_row_with_two_faults_counts_once(tmp_path):
    assert sum(build(tmp_path, with_bad(b"7,cheap,\xff")).bad_rows.values()) == 1


def test_bad_rows_change_nothing_about_the_good_ones(tmp_path):
    (tmp_path / "clean").mkdir()
    clean = build(tmp_path / "clean", GOOD)
    dirty = build(tmp_path, with_bad(b"7,5,only-in-a-bad-row"))
    assert dirty.vocabularies == clean.vocabularies
    for split in SPLITS:
        one, two = (d.examples(split, 0, d.num_examples(split)) for d in (clean, dirty))
        assert one.dense.tolist() == two.dense.tolist()
        assert one.ids["city"].tolist() == two.ids["city"].tolist()


def test_numbers_in_unusual_notation_are_numbers(tmp_path):
    data = build(tmp_path, with_bad(b"1,+5,x"))
    assert data.bad_rows == {}


def test_a_file_of_bad_rows_only_has_no_row(tmp_path):
    with pytest.raises(DataError, match="no row can be used: 2 of 2 rows are malformed"):
        build(tmp_path, [b"7,1,x", b"8,1,x"], max_bad_rows=1.0)


def test_a_row_longer_than_a_block_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    with pytest.raises(DataError, match="cannot be read as text columns"):
        build(tmp_path, with_bad(b"1,5," + b"x" * 1000))


def test_a_quote_that_is_never_closed_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_BYTES", 64)
    with pytest.raises(DataError, match=r'after a quote \("\) that is never closed'):
        build(tmp_path, with_bad(b'1,"5,x'))


def test_the_report_comes_again_when_the_encoded_data_is_opened_again(tmp_path, capsys):
    build(tmp_path, with_bad(b"7,5,x"))
    capsys.readouterr()
    config_again = build(tmp_path, with_bad(b"7,5,x"))
    assert config_again.bad_rows
    assert "skipped malformed rows" in capsys.readouterr().err
