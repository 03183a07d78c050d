"""Docstrings and functions of installed packages, found without running them."""

import pytest

from outsize.data import PydocsConfig
from outsize.data.texts.python_functions import functions_of
from outsize.errors import ConfigError, DataError

MODULE = '''
import os

raise RuntimeError("this file is never run")


@decorated
def first(a,
          b=1):
    """Return the first of two values.

    The rest of the docstring is not part of the query.
    """
    # a comment
    return a


async def second():
    """Wait for
    the second value."""
    return await b


class Third:
    """A class has no body of its own."""

    def method(self):
        r"""A method of a class."""
        def inner():
            """An inner function belongs to the outer one."""
            return 1
        return inner

    class Inner:
        def deep(self): return 2

        def deeper(self):
            """A method of an inner class."""
            return 3


if os.name == "nt":
    def chosen():
        """Chosen on one system."""
        return 1
else:
    def other():
        """Chosen on the other one."""
        return 2


def only_docstring():
    """There is nothing to find here."""


def without_docstring():
    return 1


def on_one_line(): """A docstring on one line."""; return 2
'''


def test_functions_with_docstrings_are_found_by_parsing():
    found = {f.name: f for f in functions_of(MODULE.encode(), "shelf")}
    assert list(found) == [
        "shelf.first", "shelf.second", "shelf.Third.method", "shelf.Third.Inner.deeper",
        "shelf.chosen", "shelf.other",
    ]  # fmt: skip
    first = found["shelf.first"]
    assert first.summary == "Return the first of two values."
    assert first.source.splitlines() == [
        "@decorated", "def first(a,", "          b=1):", "    # a comment", "    return a"
    ]  # fmt: skip
    assert MODULE.splitlines()[first.line - 1] == "@decorated"
    assert found["shelf.second"].summary == "Wait for the second value."
    assert found["shelf.Third.method"].source.startswith("def method(self):\n    def inner():")


@pytest.mark.parametrize(
    "content",
    [b"def f(:", b"\x00", b"# -*- coding: nonsense -*-\n", b"x = '\xff'", b"(" * 3000, b""],
)
def test_files_that_are_no_python_have_no_functions(content):
    assert list(functions_of(content, "a")) == []


def write_packages(folder):
    for name, text in {
        "shelf.py": MODULE,
        "pack/__init__.py": 'def top(x):\n    """Take the top of a pile."""\n    return x[0]\n',
        "pack/copy.py": 'def again(x):\n    """Take the top of a pile."""\n    return x[1]\n',
        "pack/same.py": 'def top(x):\n    """The same body as another."""\n    return x[0]\n',
        "pack/short.py": 'def f(x):\n    """Too short."""\n    return x[7]\n',
        "pack/tests/test_top.py": 'def g(x):\n    """Tests are left out of it."""\n    return 5\n',
        "pack/broken.py": "def (",
        "not-a-package/a.py": 'def h(x):\n    """Not a package at all."""\n    return 6\n',
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_packages_of_a_folder_become_pairs(tmp_path):
    write_packages(tmp_path)
    pairs = PydocsConfig(folders=(str(tmp_path),), validation=0.3, test=0.3).read()
    names = pairs.items.ids.to_pylist()
    assert names[0] == "pack.top"  # and neither its docstring nor its body a second time
    assert set(names[1:]) == {
        "shelf.first", "shelf.second", "shelf.Third.method", "shelf.Third.Inner.deeper",
        "shelf.chosen", "shelf.other",
    }  # fmt: skip
    row = names.index("shelf.first")
    assert pairs.items.facts["file"][row].as_py() == str(tmp_path / "shelf.py")
    assert pairs.items.facts["line"][row].as_py() == 7
    for asked, wanted in pairs.pairs.values():
        ids = [pairs.queries.ids[int(q)].as_py() for q in asked]
        assert ids == [names[int(i)] for i in wanted]
    assert sum(len(own[0]) for own in pairs.pairs.values()) == 7


def test_the_split_of_a_function_does_not_depend_on_the_others(tmp_path):
    write_packages(tmp_path)
    settings = {"folders": (str(tmp_path),), "validation": 0.3, "test": 0.3}

    def split_of(**more):
        pairs = PydocsConfig(**settings, **more).read()
        return {
            pairs.items.ids[int(i)].as_py(): split
            for split, (_, items) in pairs.pairs.items()
            for i in items
        }

    whole = split_of()
    some = split_of(packages=("shelf",))
    assert some == {name: split for name, split in whole.items() if name.startswith("shelf")}
    cut = PydocsConfig(**settings, packages=("shelf",), max_chars=5).read()
    assert set(map(len, cut.items.texts.to_pylist())) == {5}


def test_the_standard_library_is_always_there():
    pairs = PydocsConfig(packages=("heapq", "json")).read()
    names = pairs.items.ids.to_pylist()
    assert "heapq.merge" in names
    assert any(name.startswith("json.") for name in names)
    row = names.index("heapq.merge")
    assert pairs.items.facts["file"][row].as_py().endswith("heapq.py")
    assert "yield" in pairs.items.texts[row].as_py()


def test_what_cannot_be_read_is_refused(tmp_path):
    write_packages(tmp_path)
    with pytest.raises(DataError, match=r"packages names 'shelv'.*Did you mean 'shelf'"):
        PydocsConfig(folders=(str(tmp_path),), packages=("shelv",)).read()
    with pytest.raises(DataError, match=r"no such folder"):
        PydocsConfig(folders=(str(tmp_path / "none"),)).read()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no function with a docstring was found"):
        PydocsConfig(folders=(str(tmp_path / "empty"),)).read()
    with pytest.raises(ConfigError, match=r"'stdlib', which is not in the folders"):
        PydocsConfig(folders=(str(tmp_path),), packages=("stdlib",))
    with pytest.raises(ConfigError, match=r"max_chars"):
        PydocsConfig(max_chars=0)
