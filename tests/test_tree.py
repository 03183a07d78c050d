"""Tests lie where the code lies that they test."""

import fnmatch
import itertools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TREES = {ROOT / "src" / "outsize": ROOT / "tests", ROOT / "benchmarks": ROOT / "tests/benchmarks"}

# Their tests lie in the folder above: where the package is not installed, a folder of tests of its
# name would be imported in its place.
NAMED_AS_PACKAGES = {Path("integrations/sentence_transformers"), Path("kernels/softmax/triton")}


def folders_with(pattern, folder):
    """The folders below one that have files of a pattern, as paths from there."""
    found = {path.parent.relative_to(folder) for path in folder.rglob(pattern)}
    return {path for path in found if "__pycache__" not in path.parts} - {Path()}


def folders_of_code(folder):
    files = (path for path in folder.rglob("*.py") if path.name != "__init__.py")
    return {path.parent.relative_to(folder) for path in files} - {Path()}


def test_every_folder_of_code_has_a_folder_of_tests_of_its_name():
    for code, tests in TREES.items():
        without = folders_of_code(code) - folders_with("test_*.py", tests)
        assert without - NAMED_AS_PACKAGES == set()


def test_every_folder_of_tests_has_a_folder_of_code_of_its_name():
    own = {Path("benchmarks", path) for path in [Path(), *folders_of_code(ROOT / "benchmarks")]}
    known = folders_of_code(ROOT / "src" / "outsize") | own
    assert folders_with("*.py", ROOT / "tests") - known == set()


def test_no_two_files_of_tests_have_one_name():
    files = sorted((ROOT / "tests").rglob("*.py"), key=lambda path: path.name)
    named = {name: list(group) for name, group in itertools.groupby(files, lambda p: p.name)}
    assert [name for name, group in named.items() if len(group) > 1] == ["conftest.py"]


def test_the_table_of_layers_names_folders_that_are_there():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("| layer |")[2].partition("\n\n")[0]
    named = {
        word.strip("` ")
        for line in table.splitlines()[2:]
        for word in line.split("|")[1].split(",")
    }
    there = {path.stem for path in (ROOT / "src" / "outsize").iterdir() if path.name[0] != "_"}
    assert named == there - {"py", "version"}


def test_every_file_and_registry_that_says_where_to_change_what_is_there():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = page.partition("## Where to change what")[2].partition("\n\nWhat is in a registry")[0]
    files = [
        f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*.*") if ".venv" not in path.parts
    ]
    folders = {f"{file.rpartition('/')[0]}/" for file in files}
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for word in re.findall(r"`([^`]+)`", table):
        if word.isupper():
            assert re.search(rf"^{word}\b.*=", code, re.MULTILINE), word
        elif word.endswith((".py", ".pyi", ".html", "/")):
            assert fnmatch.filter([*files, *folders], f"*/{word}"), word
