"""Every option of every command, and every key of a run file, is documented."""

import dataclasses
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import outsize
from outsize.cli import COMMANDS
from outsize.cli.command_page import command_page
from outsize.data.encoding.splits import SPLITS_BY_KIND
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig
from outsize.training.tables_config import TablesConfig

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def test_the_page_of_commands_is_what_the_command_line_says():
    """Write it again with `python -m outsize.cli.command_page > docs/reference/commands.md`."""
    assert (REFERENCE / "commands.md").read_text() == command_page()


def test_every_option_says_what_it_does():
    rows = re.findall(r"^\| `.*\|$", command_page(), re.MULTILINE)
    assert len(rows) > 5 * len(COMMANDS)
    for row in rows:
        name, default, effect = re.split(r"(?<!\\) \| ", row[2:-2])
        assert default.strip(), name
        assert len(effect.split()) > 1, name


def config_classes():
    """All classes of run files of the package: of sections, and of registries by kind."""
    found, left = set(), [RunConfig, StoreConfig, TablesConfig, *SPLITS_BY_KIND.values()]
    registries = ["CLICK_DATA", "RETRIEVAL_DATA", "GRAPH_DATA"]
    left += [kind for name in registries for kind in getattr(outsize.data, name).values()]
    left += [kind for name in ("CLICK_MODELS", "RETRIEVAL_MODELS", "GRAPH_MODELS")
             for kind in getattr(outsize.models, name).values()]  # fmt: skip
    left += list(outsize.negatives.NEGATIVES.values())
    while left:
        kind = left.pop()
        is_own = getattr(kind, "__module__", "").startswith("outsize.")  # tests register others
        if not is_own or not dataclasses.is_dataclass(kind) or kind in found:
            continue
        found.add(kind)
        hints = inspect.get_annotations(kind, eval_str=False)
        module = vars(import_module(kind.__module__))
        for words in hints.values():
            left += [module[name] for name in re.findall(r"\w+", str(words)) if name in module]
    return sorted(found, key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("kind", config_classes(), ids=lambda kind: kind.__name__)
def test_every_key_of_a_run_file_has_its_line_in_the_docstring(kind):
    texts = [each.__doc__ or "" for each in kind.__mro__]
    documented = set(re.findall(r"^\s+(\w+): ", "\n".join(texts), re.MULTILINE))
    assert {field.name for field in dataclasses.fields(kind) if field.init} <= documented


def test_every_class_of_a_run_file_is_on_the_page():
    page = (REFERENCE / "configuration.md").read_text()
    listed = set(re.findall(r"^::: (\S+)$", page, re.MULTILINE))
    last = {name.rpartition(".")[2] for name in listed}
    missing = [
        kind.__qualname__
        for kind in config_classes()
        if kind.__module__ not in listed and kind.__name__ not in last
    ]
    assert missing == []
