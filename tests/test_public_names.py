"""The public surface: what the page lists is what `outsize` has, both ways."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import outsize

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "public.md").read_text()
DOCUMENTED = [
    *re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE),
    *re.findall(r"\[`\w+`\]\[([\w.]+)\]", PAGE),
]
REGISTRIES = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
ALL = dir(outsize)
PACKAGES = {
    "data", "metrics", "models", "negatives", "nn", "search", "stores", "tables", "training",
}  # fmt: skip
NAMES = {*ALL} - PACKAGES - {"__version__"}


def test_the_page_lists_every_public_name():
    listed = {path.rpartition(".")[2] for path in DOCUMENTED} | set(REGISTRIES)
    assert listed == NAMES


@pytest.mark.parametrize("path", DOCUMENTED)
def test_every_name_on_the_page_can_be_imported_from_outsize(path):
    module, _, name = path.rpartition(".")
    assert getattr(outsize, name) is getattr(import_module(module), name)


@pytest.mark.parametrize("name", REGISTRIES)
def test_every_registry_on_the_page_has_names(name):
    assert all(isinstance(key, str) for key in getattr(outsize, name))
    assert len(getattr(outsize, name)) > 0


def test_every_listed_name_is_seen_by_type_checkers():
    stub = Path(outsize.__file__).with_suffix(".pyi").read_text()
    for line in ast.parse(stub).body:
        assert isinstance(line, ast.ImportFrom)
        for alias in line.names:
            assert alias.asname == alias.name, "type checkers take other names for private ones"


def test_every_listed_name_can_be_imported():
    for name in ALL:
        assert getattr(outsize, name) is not None
        assert name in dir(outsize)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        outsize.nothing  # noqa: B018
