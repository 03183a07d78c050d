from __future__ import annotations

import json

import pytest

from outsize.json_files import (
    Absent,
    Each,
    OneOf,
    SchemaError,
    Whole,
    Word,
    check,
    parse_json,
    read_json,
)

SCHEMA = {
    "format": int,
    "files": Each({"bytes": Whole(), "sha256": str}),
    "rates": [float],
    "best": OneOf(None, {"step": Whole(1)}),
    "note": Absent(str),
    "pair": Absent((float, Whole())),
    "kind": Absent(Word("one", "other")),
}
GOOD = {
    "format": 2,
    "files": {"a": {"bytes": 3, "sha256": "x"}},
    "rates": [1, 0.5],
    "best": None,
    "more": "is fine",
}


def test_what_fits_comes_back_as_it_is(tmp_path):
    path = tmp_path / "file.json"
    path.write_text(json.dumps(GOOD))
    assert read_json(path, SCHEMA) == GOOD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "2"}, 'format is "2" where a whole number belongs'),
        ({"format": True}, "format is true where a whole number belongs"),
        ({"format": 2.0}, "format is 2.0 where a whole number belongs"),
        ({"files": []}, "files is a list where an object belongs"),
        ({"files": {"a": None}}, "files.a is null where an object belongs"),
        ({"files": {"a": {"sha256": "x"}}}, "files.a.bytes is missing"),
        (
            {"files": {"a": {"bytes": -1, "sha256": "x"}}},
            "files.a.bytes is -1 where a whole number of at least 0 belongs",
        ),
        ({"rates": [1.0, "x"]}, 'rates[1] is "x" where a number belongs'),
        ({"best": {"step": 0}}, "best.step is 0 where a whole number of at least 1 belongs"),
        ({"best": 4}, "best is 4 where null or an object belongs"),
        ({"note": 1}, "note is 1 where text belongs"),
        ({"pair": [1.5]}, "pair is a list where a list of 2 belongs"),
        ({"pair": [1.5, 2, 3]}, "pair is a list where a list of 2 belongs"),
        ({"pair": [1.5, 0.5]}, "pair[1] is 0.5 where a whole number of at least 0 belongs"),
        ({"pair": {"0": 1.5}}, "pair is an object where a list of 2 belongs"),
        ({"kind": "third"}, 'kind is "third" where "one" or "other" belongs'),
        ({"kind": ["one"]}, 'kind is a list where "one" or "other" belongs'),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    with pytest.raises(SchemaError) as error:
        parse_json(json.dumps(GOOD | change), SCHEMA)
    assert str(error.value) == words


@pytest.mark.parametrize("content", [b"", b"{", b'"text"', b"[]", b"\xff\xfe", b"null", b"3"])
def test_anything_else_is_refused(content):
    with pytest.raises(SchemaError, match="it is"):
        parse_json(content, SCHEMA)


def test_deep_nesting_is_refused_and_not_followed():
    for content in ("[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000):
        with pytest.raises(SchemaError, match="nested too deeply"):
            parse_json(content, object)


def test_trees_may_hold_more_than_json():
    class Thing:
        pass

    check({"a": [Thing()]}, {"a": [Thing]})
    with pytest.raises(SchemaError) as error:
        check({"a": [3]}, {"a": [Thing]})
    assert str(error.value) == "a[0] is 3 where a Thing belongs"
    with pytest.raises(SchemaError) as error:
        check({"a": Thing()}, {"a": float})
    assert str(error.value) == "a is a Thing where a number belongs"


@pytest.mark.parametrize("pair", [[0.5, 3], [2, 0]])
def test_a_list_of_given_members_fits(pair):
    assert parse_json(json.dumps({"pair": pair}), {"pair": (float, Whole())}) == {"pair": pair}
