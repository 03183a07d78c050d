from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.training.strict_toml import choice, decode, encode, override, read_toml, to_toml


@dataclass(frozen=True)
class Grid:
    rows: int = 3

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"rows must be >= 1, but got {self.rows}")


@dataclass(frozen=True)
class Square:
    side: float = 1.0


@dataclass(frozen=True)
class Circle:
    radius: float = 2.0
    grid: Grid = field(default_factory=Grid)


@dataclass(frozen=True)
class Page:
    title: str
    count: int = 1
    rate: float = 0.5
    bold: bool = False
    color: Literal["red", "green"] = "red"
    sizes: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    limit: float | None = None
    grid: Grid = field(default_factory=Grid)
    shape: Square | Circle = choice({"square": Square, "circle": Circle}, "square")


FLOATS = st.floats(allow_nan=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
GRIDS = st.builds(Grid, rows=st.integers(1, 2**63 - 1))
PAGES = st.builds(
    Page,
    title=st.text(),
    count=INTEGERS,
    rate=FLOATS,
    bold=st.booleans(),
    color=st.sampled_from(["red", "green"]),
    sizes=st.lists(INTEGERS, max_size=3).map(tuple),
    words=st.lists(st.text(), max_size=3).map(tuple),
    rates=st.lists(FLOATS, max_size=3).map(tuple),
    limit=st.none() | FLOATS,
    grid=GRIDS,
    shape=st.builds(Square, FLOATS) | st.builds(Circle, FLOATS, GRIDS),
)
KEYS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,5}", fullmatch=True)
TREES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(KEYS, st.integers(), max_size=3),
    lambda tables: st.dictionaries(KEYS, st.integers() | tables, max_size=3),
    max_leaves=8,
)


def refusal(tree: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        decode(Page, {"title": "a", **tree}, "run.toml")
    message = str(caught.value)
    assert message.startswith("run.toml: ")
    assert "\n" not in message
    return message


@given(PAGES)
@example(Page('"quoted" \\ back\\slash', words=("line\nbreak", "tab\t", "\r\n", "'''", '"""')))
@example(Page("ünïcödé 漢字 🙂", words=("\x00\x1f", "\u2028\x85", "# = [x]")))
@example(Page("delete \x7f"))
@example(Page("", count=-(2**63), rate=5e-324, rates=(1e308, -0.0, 1e16, 1e-7, float("inf"))))
def test_what_is_written_reads_back_the_same(page):
    text = to_toml(encode(page))

    assert decode(Page, tomllib.loads(text), "run.toml") == page


@given(TREES)
@example({"a": {}})
@example({"a": {"b": {"c": 1}}, "d": 2})
def test_a_tree_keeps_its_tables(tree):
    assert tomllib.loads(to_toml(tree)) == tree


def test_numbers_come_back_bit_for_bit():
    rates = (0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308)

    read = tomllib.loads(to_toml({"rates": list(rates)}))["rates"]

    assert [rate.hex() for rate in read] == [rate.hex() for rate in rates]


def test_fields_that_are_none_are_left_out():
    assert "limit" not in encode(Page("a"))
    assert encode(Page("a", limit=0.0))["limit"] == 0.0


def test_a_choice_is_written_with_its_kind():
    tree = encode(Page("a", shape=Circle(4.0)))

    assert tree["shape"] == {"kind": "circle", "radius": 4.0, "grid": {"rows": 3}}


def test_a_choice_without_kind_is_the_default_kind():
    page = decode(Page, {"title": "a", "shape": {"side": 3.0}}, "run.toml")

    assert page.shape == Square(3.0)


def test_an_integer_is_accepted_for_a_float_and_becomes_one():
    page = decode(Page, {"title": "a", "rate": 2, "limit": 3, "rates": [1]}, "run.toml")

    assert [type(x) for x in (page.rate, page.limit, page.rates[0])] == [float] * 3
    assert (page.rate, page.limit, page.rates) == (2.0, 3.0, (1.0,))


@pytest.mark.parametrize(
    ("tree", "key", "hint"),
    [
        ({"cuont": 1}, "cuont", "count"),
        ({"grid": {"rwos": 1}}, "grid.rwos", "rows"),
        ({"shape": {"sied": 1.0}}, "shape.sied", "side"),
        ({"shape": {"kind": "circle", "grid": {"row": 1}}}, "shape.grid.row", "rows"),
    ],
)
def test_an_unknown_key_gets_a_hint_at_every_depth(tree, key, hint):
    assert f"unknown key {key!r}. Did you mean {hint!r}?" in refusal(tree)


def test_a_key_of_another_kind_is_named_with_its_kind():
    assert refusal({"shape": {"kind": "circle", "side": 1.0}}).endswith(
        "'shape.side' is a key of shape.kind = 'square', but the kind is 'circle': remove it. "
        "Known: grid, radius."
    )


def test_an_unknown_key_like_no_other_lists_the_known_ones():
    message = refusal({"shape": {"kind": "circle", "zzzz": 1}})

    assert "'shape.zzzz'" in message
    assert "grid, radius" in message


@pytest.mark.parametrize(
    ("tree", "key", "wanted", "got"),
    [
        ({"count": "3"}, "count", "an integer", "'3'"),
        ({"count": True}, "count", "an integer", "True"),
        ({"count": 1.0}, "count", "an integer", "1.0"),
        ({"rate": "0.5"}, "rate", "a number", "'0.5'"),
        ({"rate": False}, "rate", "a number", "False"),
        ({"limit": "none"}, "limit", "a number", "'none'"),
        ({"title": 3}, "title", "a string", "3"),
        ({"bold": 1}, "bold", "true or false", "1"),
        ({"bold": "true"}, "bold", "true or false", "'true'"),
        ({"sizes": 3}, "sizes", "a list", "3"),
        ({"words": "abc"}, "words", "a list", "'abc'"),
        ({"sizes": [1, "2"]}, "sizes[1]", "an integer", "'2'"),
        ({"rates": [0.5, 1, True]}, "rates[2]", "a number", "True"),
        ({"sizes": [[1]]}, "sizes[0]", "an integer", "[1]"),
        ({"grid": {"rows": "many"}}, "grid.rows", "an integer", "'many'"),
        ({"count": {"a": 1}}, "count", "an integer", "{'a': 1}"),
        ({"title": "multi", "count": "a\nb"}, "count", "an integer", "'a\\nb'"),
    ],
)
def test_a_value_of_the_wrong_type_names_key_type_and_value(tree, key, wanted, got):
    assert refusal(tree).endswith(f"{key} must be {wanted}, but got {got}")


@pytest.mark.parametrize("value", [3, "square", [1], True])
@pytest.mark.parametrize("section", ["grid", "shape"])
def test_a_value_in_place_of_a_section_is_refused(section, value):
    assert f"{section!r} must be a section, but got {value!r}" in refusal({section: value})


def test_a_word_outside_the_choices_lists_them_and_gets_a_hint():
    message = refusal({"color": "gren"})

    assert "color must be one of 'red', 'green', but got 'gren'" in message
    assert "Did you mean 'green'?" in message


@pytest.mark.parametrize("value", [3, ["red"], {"red": 1}])
def test_a_choice_of_words_takes_nothing_but_words(value):
    assert f"'red', 'green', but got {value!r}" in refusal({"color": value})


def test_an_unknown_kind_lists_the_kinds():
    message = refusal({"shape": {"kind": "circel"}})

    assert "shape.kind = 'circel' is unknown" in message
    assert "Did you mean 'circle'?" in message
    assert "square, circle" in message


@pytest.mark.parametrize("kind", [3, True, ["circle"], {"circle": 1}])
def test_a_kind_that_is_no_word_lists_the_kinds(kind):
    assert "square, circle" in refusal({"shape": {"kind": kind}})


def test_a_missing_field_without_default_is_named():
    with pytest.raises(ConfigError, match=r"^run.toml: 'title' is missing and has no default$"):
        decode(Page, {"count": 3}, "run.toml")


def test_an_integer_too_large_for_a_float_is_refused():
    assert "rate must be" in refusal({"rate": 10**400})


@pytest.mark.parametrize(
    ("tree", "section"),
    [
        ({"grid": {"rows": 0}}, "grid"),
        ({"shape": {"kind": "circle", "grid": {"rows": 0}}}, "shape.grid"),
    ],
)
def test_a_complaint_of_a_dataclass_gets_file_and_section_once(tree, section):
    assert refusal(tree) == f"run.toml: [{section}] rows must be >= 1, but got 0"


def test_a_complaint_at_the_top_gets_the_file_alone():
    with pytest.raises(ConfigError, match=r"^run.toml: rows must be >= 1, but got 0$"):
        decode(Grid, {"rows": 0}, "run.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-3", 0.001),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("[]", []),
        ('"3"', "3"),
        ("'a b'", "a b"),
        ("full-adagrad", "full-adagrad"),
        ("two words", "two words"),
        ("/data/day=1/train.tsv", "/data/day=1/train.tsv"),
        ("True", "True"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_a_setting_is_toml_or_else_a_string(text, value):
    found = override({}, [f"a.b={text}"])["a"]["b"]

    assert found == value
    assert type(found) is type(value)


def test_spaces_around_keys_and_values_do_not_matter():
    assert override({}, [" a . b = 3 ", "c = some word "]) == {"a": {"b": 3}, "c": "some word"}


def test_settings_make_the_sections_they_need_and_leave_the_rest():
    tree = {"a": {"b": 1, "c": 2}, "d": 3}

    assert override(tree, ["a.b=9", "x.y.z=1"]) == {
        "a": {"b": 9, "c": 2},
        "d": 3,
        "x": {"y": {"z": 1}},
    }


def test_the_last_of_two_settings_counts():
    assert override({}, ["a=1", "a=2"]) == {"a": 2}


@given(TREES, st.lists(KEYS, min_size=1, max_size=3))
@example({"a": {"b": 1}}, ["a", "b"])
@example({"a": {"b": {"c": 1}}}, ["a", "b", "d"])
def test_override_does_not_change_its_input(tree, keys):
    before = copy.deepcopy(tree)
    setting = f"{'.'.join(keys)}=99999"

    try:
        changed = override(tree, [setting])
    except ConfigError:  # a value stands where the setting wants a section
        assert tree == before
        return

    assert tree == before
    node: Any = changed
    for key in keys:
        node = node[key]
    assert node == 99999


def test_a_setting_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match=r"--set 'data.path=caf\\udce9' is no UTF-8: rename"):
        override({}, ["data.path=caf\udce9"])


@pytest.mark.parametrize("setting", ["", "a", "a.b", "=3", "a.=3", ".b=3", "a..b=3", " =3"])
def test_a_malformed_setting_is_quoted_with_the_right_form(setting):
    with pytest.raises(ConfigError) as caught:
        override({}, [setting])

    assert repr(setting) in str(caught.value)
    assert "section.key=value" in str(caught.value)


def test_a_setting_below_a_value_names_the_value():
    with pytest.raises(ConfigError, match=r"'a.b.c=1': 'b' is a value, not a section"):
        override({"a": {"b": 1}}, ["a.b.c=1"])


def test_a_file_is_read_as_utf_8(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes('name = "ünïcödé 🙂"\r\n[a]\r\nb = 1\r\n'.encode())

    assert read_toml(path) == {"name": "ünïcödé 🙂", "a": {"b": 1}}


def refused_file(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_missing_file_is_named(tmp_path):
    assert "no such file" in refused_file(tmp_path / "run.toml")


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    assert "cannot be read" in refused_file(tmp_path / "file" / "run.toml")


def test_a_folder_is_no_run_file(tmp_path):
    assert "is a folder" in refused_file(tmp_path)


@pytest.mark.parametrize("line", ["b =", "b = 1 2", "a = 2", 'b = "open', "b = [1,\n", "[a"])
def test_invalid_toml_is_named_by_its_line(tmp_path, line):
    path = tmp_path / "run.toml"
    path.write_text(f"a = 1\n{line}\n")

    message = refused_file(path)

    assert "not valid TOML" in message
    assert "line 2" in message or "end of document" in message


@pytest.mark.parametrize("content", [b'name = "\xe9t\xe9"', b"\xff\xfea\x00", b"\x80"])
def test_bytes_that_are_not_utf_8_are_refused(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)

    assert "utf-8" in refused_file(path)


# Both are errors of the parser that are no TOMLDecodeError.
@pytest.mark.parametrize("value", ["1" * 5000, "[" * 100_000], ids=["digits", "brackets"])
def test_toml_beyond_the_limits_of_the_parser_is_refused(tmp_path, value):
    path = tmp_path / "run.toml"
    path.write_text(f"a = {value}\n")

    assert "is not valid TOML" in refused_file(path)


DEEP = {
    "lists": "a = " + "[" * 40 + "]" * 40,
    "lists deeper than the parser goes": "a = " + "[" * 5_000 + "]" * 5_000,
    "inline tables": "a = " + "{b = " * 40 + "1" + "}" * 40,
    "parts of a key": ".".join(["a"] * 50) + " = 1",
    "parts of a key, in a time that grows with their square": ".".join(["a"] * 200_000) + " = 1",
    "parts of a header": f"[{'.'.join(['a'] * 100_000)}]",
    "parts of a key in an inline table": "a = {b = 1, " + ".".join(["a"] * 100_000) + " = 1}",
    "sections": "\n".join(f"[{'.'.join(['a'] * depth)}]" for depth in range(1, 50)),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_nested_too_deeply_is_refused(tmp_path, name):
    path = tmp_path / "run.toml"
    path.write_text(DEEP[name])

    message = refused_file(path)

    assert "nested deeper than 32 levels" in message or "a key of more than 32 parts" in message


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 31 + "]" * 31, ".".join(["a"] * 32) + " = 1", "a = '....' # " + "." * 99],
)
def test_what_is_nested_as_deep_as_allowed_is_read(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)

    assert "a" in read_toml(path)


@pytest.mark.parametrize(
    "setting",
    ["a=" + "[" * 200 + "]" * 200, "a=" + "[" * 50_000, "a=" + "9" * 5_000, "a." * 5_000 + "b=1"],
    ids=["lists", "brackets", "digits", "parts"],
)
def test_a_setting_beyond_the_limits_is_refused_in_a_short_line(setting):
    with pytest.raises(ConfigError) as caught:
        override({}, [setting])

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_file_without_end_is_no_run_file():
    assert "is larger than 1,048,576 bytes" in refused_file(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"count": 2**63}, "count must be a 64-bit integer, but got 9223372036854775808"),
        ({"sizes": [1, -(2**63) - 1]}, "sizes[1] must be a 64-bit integer"),
        ({"rate": float("nan")}, "rate must be a number, but got nan"),
        ({"title": "x" * 10_000}, "title is a string of 10,000 characters, more than the 4,096"),
        ({"words": ["x" * 5_000]}, "words[0] is a string of 5,000 characters"),
        ({"sizes": [1] * 100_000}, "sizes is a list of 100,000, more than the 65,536"),
    ],
)
def test_a_value_beyond_what_any_key_means_is_refused(tree, expected):
    assert expected in refusal(tree)


@pytest.mark.parametrize(
    "tree",
    [{"count": "x" * 9_999}, {"x" * 9_999: 1}, {"shape": {"kind": "x" * 9_999}},
     {"grid": [1] * 999}, {"color": "x" * 9_999}, {"bold": [[1] * 99] * 99}],
)  # fmt: skip
def test_a_long_value_is_cut_in_the_message(tree):
    message = refusal(tree)

    assert "..." in message
    assert len(message) < 300


@dataclass(frozen=True)
class Book:
    pages: Mapping[str, Grid] = field(default_factory=dict)


def test_sections_may_be_named_by_the_user():
    book = decode(Book, {"pages": {"first": {"rows": 2}, "last-1": {}}}, "x.toml")
    assert book == Book({"first": Grid(2), "last-1": Grid()})
    assert decode(Book, tomllib.loads(to_toml(encode(book))), "x.toml") == book
    assert decode(Book, encode(Book()), "x.toml") == Book()


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        (3, "'pages' must be a section, but got 3"),
        ({"first": 3}, "'pages.first' must be a section, but got 3"),
        ({"a b": {}}, "'pages.a b' must be named by letters, digits, _ and - only"),
        ({"first": {"row": 1}}, "unknown key 'pages.first.row'. Did you mean 'rows'"),
        ({"first": {"rows": 0}}, r"[pages.first] rows must be >= 1"),
    ],
)
def test_a_wrong_section_among_named_ones_is_named(pages, words):
    with pytest.raises(ConfigError) as error:
        decode(Book, {"pages": pages}, "x.toml")
    assert words in str(error.value)
