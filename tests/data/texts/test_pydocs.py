"""Docstrings and functions of installed packages, found without running them."""

import threading

import pytest

import outsize.data.texts.pydocs as pydocs
from outsize.data import PydocsConfig
from outsize.data.texts.python_functions import functions_of
from outsize.errors import ConfigError, DataError, WriteError

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


@pytest.fixture(autouse=True)
def cached(tmp_path, monkeypatch):
    """The user's folder of caches is one of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "outsize"


@pytest.fixture
def parsed(monkeypatch):
    """The modules of the files that are parsed, in their order."""
    modules = []

    def recorded(content, module):
        modules.append(module)
        return functions_of(content, module)

    monkeypatch.setattr(pydocs, "functions_of", recorded)
    return modules


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
    write_packages(tmp_path / "lib")
    pairs = PydocsConfig(folders=(str(tmp_path / "lib"),), validation=0.3, test=0.3).read()
    names = pairs.items.ids.to_pylist()
    assert names[0] == "pack.top"  # and neither its docstring nor its body a second time
    assert set(names[1:]) == {
        "shelf.first", "shelf.second", "shelf.Third.method", "shelf.Third.Inner.deeper",
        "shelf.chosen", "shelf.other",
    }  # fmt: skip
    row = names.index("shelf.first")
    assert pairs.items.facts["file"][row].as_py() == str(tmp_path / "lib" / "shelf.py")
    assert pairs.items.facts["line"][row].as_py() == 7
    for asked, wanted in pairs.pairs.values():
        ids = [pairs.queries.ids[int(q)].as_py() for q in asked]
        assert ids == [names[int(i)] for i in wanted]
    assert sum(len(own[0]) for own in pairs.pairs.values()) == 7


def test_the_split_of_a_function_does_not_depend_on_the_others(tmp_path):
    write_packages(tmp_path / "lib")
    settings = {"folders": (str(tmp_path / "lib"),), "validation": 0.3, "test": 0.3}

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
    write_packages(tmp_path / "lib")
    with pytest.raises(DataError, match=r"packages names 'shelv'.*Did you mean 'shelf'"):
        PydocsConfig(folders=(str(tmp_path / "lib"),), packages=("shelv",)).read()
    with pytest.raises(DataError, match=r"no such folder"):
        PydocsConfig(folders=(str(tmp_path / "none"),)).read()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no function with a docstring was found"):
        PydocsConfig(folders=(str(tmp_path / "empty"),)).read()
    with pytest.raises(ConfigError, match=r"'stdlib', which is not in the folders"):
        PydocsConfig(folders=(str(tmp_path / "lib"),), packages=("stdlib",))
    with pytest.raises(ConfigError, match=r"max_chars"):
        PydocsConfig(max_chars=0)


def texts_of(pairs):
    sides = (pairs.queries, pairs.items)
    return [(side.ids.to_pylist(), side.texts.to_pylist()) for side in sides]


def test_functions_are_parsed_once_and_again_when_a_file_changes(tmp_path, parsed, cached):
    lib = tmp_path / "lib"
    write_packages(lib)
    config = PydocsConfig(folders=(str(lib),), validation=0.3, test=0.3)
    first = texts_of(config.read())
    count = len(parsed)
    assert count == len(set(parsed)) > 3
    assert texts_of(config.read()) == first
    # The split is not part of what is kept.
    again = PydocsConfig(folders=(str(lib),), validation=0.2, test=0.5, seed=3).read()
    assert texts_of(again)[1] == first[1]
    assert len(parsed) == count
    (kept,) = (path for path in cached.iterdir() if path.is_dir())
    assert sorted(path.name for path in kept.iterdir()) == ["functions.arrow", "manifest.json"]
    with (lib / "shelf.py").open("a") as file:
        file.write('\n\ndef fresh(x):\n    """Return what is new here."""\n    return [x]\n')
    assert "shelf.fresh" in config.read().items.ids.to_pylist()
    assert len(parsed) == 2 * count
    assert [path for path in cached.iterdir() if path.is_dir()] == [kept]
    PydocsConfig(folders=(str(lib),), validation=0.3, test=0.3, max_chars=9).read()
    assert len(parsed) == 3 * count  # what was kept is of another length


def test_of_several_readers_one_parses_and_the_others_wait(tmp_path, parsed):
    write_packages(tmp_path / "lib")
    config = PydocsConfig(folders=(str(tmp_path / "lib"),), validation=0.3, test=0.3)
    found = []
    readers = [threading.Thread(target=lambda: found.append(texts_of(config.read())))
               for _ in range(3)]  # fmt: skip
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2]
    assert len(parsed) == len(set(parsed))


@pytest.mark.parametrize("damage", [b"", b"ARROW1 and nothing else"])
def test_damaged_functions_are_parsed_again(tmp_path, parsed, damage):
    write_packages(tmp_path / "lib")
    cache = tmp_path / "kept"
    settings = {"folders": (str(tmp_path / "lib"),), "validation": 0.3, "test": 0.3}
    config = PydocsConfig(**settings, cache=str(cache))
    first = texts_of(config.read())
    count = len(parsed)
    (file,) = cache.glob("*/functions.arrow")
    file.write_bytes(damage)
    assert texts_of(config.read()) == first
    assert len(parsed) == 2 * count


def test_where_nothing_can_be_kept_functions_are_parsed_each_time(tmp_path, parsed, monkeypatch,
                                                                  capsys):  # fmt: skip
    write_packages(tmp_path / "lib")
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/outsize-cannot-write")
    config = PydocsConfig(folders=(str(tmp_path / "lib"),), validation=0.3, test=0.3)
    first = texts_of(config.read())
    count = len(parsed)
    assert "parsed functions are not kept: could not write" in capsys.readouterr().err
    assert texts_of(config.read()) == first
    assert len(parsed) == 2 * count
    named = PydocsConfig(folders=(str(tmp_path / "lib"),), cache="/proc/outsize-cannot-write")
    with pytest.raises(WriteError, match="could not write encoded data"):
        named.read()
    with pytest.raises(ConfigError, match="must be the name of a folder"):
        PydocsConfig(cache="a\0b")
