"""Things of a user's own: the page on them is run, and `--import` says what is wrong."""

import json
import re
import sys
from pathlib import Path

import processes
import pytest

import outsize
from outsize import user_modules
from outsize.cli import main
from outsize.errors import ConfigError
from outsize.registries import ByTask, name_of
from outsize.stores import store_classes
from outsize.training import load_config
from outsize.training.config import RunConfig
from outsize.training.store_config import StoreConfig
from outsize.training.strict_toml import decode, encode

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path):
    """The page as files."""
    (tmp_path / "my_module.py").write_text("\n\n".join(blocks("python")))
    clicks, pairs = blocks("toml")
    (tmp_path / "clicks.toml").write_text(clicks)
    (tmp_path / "pairs.toml").write_text(pairs)
    return tmp_path


def call(folder, *words, ranks=1):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = [*(launcher if ranks > 1 else []), "-m", "outsize", *words]
    return processes.run(*words, cwd=folder, timeout=300)


def test_every_command_of_the_page_runs(folder):
    (script,) = blocks("bash")
    for line in script.strip().splitlines():
        done = call(folder, *line.split()[1:])
        assert done.returncode == 0, done.stderr
    assert (folder / "compare" / "clicks" / "compare.md").exists()


def test_a_run_of_your_own_is_exported_and_resumed_with_the_same_import(folder):
    own = ("--import", "my_module")
    done = call(folder, "train", "clicks.toml", *own, "--out", "run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 8
    done = call(folder, "export", "run", "exported", *own)
    assert done.returncode == 0, done.stderr
    load = "import my_module, outsize; print(outsize.load_exported('exported'))"
    done = processes.run("-c", load, cwd=folder)
    assert done.stdout.startswith("Linear(")
    done = call(folder, "train", "clicks.toml", "--out", "run", "--resume")
    assert done.returncode == 2
    assert "import its module first: --import MODULE" in done.stderr


def test_every_rank_imports_the_module(folder):
    done = call(folder, "train", "pairs.toml", "--import", "my_module", ranks=2)
    assert done.returncode == 0, done.stderr


OWN_PARTS = """
import dataclasses

import outsize
from outsize.data import SyntheticInteractionsConfig
from outsize.data.graphs.synthetic import SyntheticGraphConfig
from outsize.models import GraphSAGEConfig, TwoTowerConfig
from outsize.stores import wire


def told(name):
    with open("used", "a") as file:
        file.write(name + "\\n")


class MyStore(outsize.LocalStore):
    def exchange(self, *args, **settings):
        told("store")
        return super().exchange(*args, **settings)


class MyRows(outsize.RowSGD):
    def __init__(self, store, **settings):
        told("row optimizer")
        super().__init__(store, **settings)


class MyWire(wire.BFloat16Wire):
    def encode(self, vectors):
        told("wire")
        return super().encode(vectors)


def telling(kind, name):
    @dataclasses.dataclass(frozen=True)
    class Own(kind):
        def build(self, *args, **settings):
            told(name)
            return super().build(*args, **settings)

    return Own


outsize.STORES["mine"], outsize.ROW_OPTIMIZERS["mine"] = MyStore, MyRows
outsize.WIRES["mine"] = MyWire()
outsize.RETRIEVAL_DATA["mine"] = telling(SyntheticInteractionsConfig, "retrieval data")
outsize.RETRIEVAL_MODELS["my-towers"] = telling(TwoTowerConfig, "retrieval model")
outsize.GRAPH_DATA["my-graph"] = telling(SyntheticGraphConfig, "graph data")
outsize.GRAPH_MODELS["my-layers"] = telling(GraphSAGEConfig, "graph model")
"""
RUN_OF_OWN_PARTS = """
[data]
kind = "{data}"
[model]
kind = "{model}"
hidden = {hidden}
[embeddings]
dim = 4
store = "{store}"
{settings}
[train]
batch_size = 64
steps = 3
"""


@pytest.mark.parametrize(
    ("parts", "settings", "ranks", "used"),
    [
        ({"store": "mine"}, '[embeddings.optimizer]\nkind = "mine"', 1, {"store", "row optimizer"}),
        ({"store": "sharded"}, 'wire = "mine"', 2, {"wire"}),
        ({"data": "mine", "model": "my-towers", "hidden": "[8]"}, "", 1,
         {"retrieval data", "retrieval model"}),
        ({"data": "my-graph", "model": "my-layers", "hidden": "8"}, "", 1,
         {"graph data", "graph model"}),
    ],
)  # fmt: skip
def test_what_a_module_enters_in_a_registry_trains_in_runs(tmp_path, parts, settings, ranks, used):
    clicks = {"data": "synthetic", "model": "deepfm", "hidden": "[8]", "store": "local"}
    (tmp_path / "own_parts.py").write_text(OWN_PARTS)
    run = RUN_OF_OWN_PARTS.format(**{**clicks, **parts}, settings=settings)
    (tmp_path / "run.toml").write_text(run)
    sizes = ("--set", "data.num_train=500") if "data" not in parts else ()
    done = call(tmp_path, "train", "run.toml", "--import", "own_parts", *sizes, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "used").read_text().split("\n")) == {*used, ""}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nowhere", None, "--import nowhere: there is no module 'nowhere' in"),
        (
            "plain.nowhere",
            "",
            "there is no module 'plain.nowhere' in",
        ),
        ("mine.py", "", "the module of my_module.py is my_module"),
        ("broken", "\n\n1 / 0", "ZeroDivisionError: division by zero (broken.py, line 3)"),
        ("typo", "\nx = = 1", "SyntaxError: invalid syntax (typo.py, line 2)"),
        ("lacking", "import nothing_here", "ModuleNotFoundError: No module named 'nothing_here'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    tmp_path, monkeypatch, capfd, name, content, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if content is not None:
        Path(f"{name.partition('.')[0]}.py").write_text(content)
    Path("run.toml").write_text("seed = 1\n")
    with pytest.raises(SystemExit) as caught:
        main(["train", "run.toml", "--import", name])
    assert caught.value.code == 2
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert line.startswith(f"outsize: --import {name}")
    assert words in line


def test_a_module_is_imported_once_and_remembered_for_other_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_modules, "_imported", [])
    Path("counted_once.py").write_text("print('imported')")
    user_modules.import_modules(["counted_once", "counted_once"])
    assert user_modules.imported_modules() == ("counted_once",)
    assert sys.modules["counted_once"].__file__ == str(tmp_path / "counted_once.py")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"model": {"kind": "dlmr"}}, "model.kind = 'dlmr' is unknown. Did you mean 'dlrm'?"),
        ({"data": {"kind": "x"}}, "data.kind = 'x' is unknown."),
        ({"embeddings": {"store": "shardd"}},
         "[embeddings] store must be one of local, sharded, served, but got 'shardd'. Did you "
         "mean 'sharded'?"),
        ({"embeddings": {"wire": "x"}}, "wire must be one of float32, bfloat16, int8"),
        ({"embeddings": {"optimizer": {"kind": "addam"}}},
         "[embeddings.optimizer] kind must be one of sgd, adagrad, full-adagrad, adam, but got "
         "'addam'. Did you mean 'adam'?"),
        ({"embeddings": {"cache": {"eviction": "x"}}}, "eviction must be one of lru, lfu"),
        ({"embeddings": {"kind": "tables", "method": "x"}}, "method must be one of full, hash"),
    ],
)  # fmt: skip
def test_a_name_that_no_registry_has_is_told_with_the_way_to_enter_it(tree, words):
    with pytest.raises(ConfigError) as caught:
        decode(RunConfig, tree, "run.toml")
    assert words in str(caught.value)
    assert str(caught.value).endswith("import its module first: --import MODULE")


def test_a_kind_that_cannot_be_entered_says_nothing_of_importing():
    with pytest.raises(ConfigError) as caught:
        decode(RunConfig, {"embeddings": {"kind": "x"}}, "run.toml")
    assert "--import" not in str(caught.value)


def test_what_is_entered_later_can_be_named(monkeypatch, tmp_path):
    class MyStore(outsize.LocalStore):
        pass

    class MyRows(outsize.RowSGD):
        pass

    monkeypatch.setitem(outsize.STORES, "mine", MyStore)
    monkeypatch.setitem(outsize.ROW_OPTIMIZERS, "mine", MyRows)
    monkeypatch.setitem(outsize.WIRES, "mine", outsize.WIRES["float32"])
    text = '[embeddings]\nstore = "mine"\n[embeddings.optimizer]\nkind = "mine"\n'
    (tmp_path / "run.toml").write_text(text)
    embeddings = load_config(tmp_path / "run.toml").embeddings
    store = embeddings.build_store([outsize.TableSpec("rows", 9, 16)], seed=0)
    assert type(store) is MyStore
    assert type(embeddings.build_row_optimizer(store)) is MyRows
    assert StoreConfig(store="sharded", wire="mine").wire == "mine"


def test_run_files_name_the_stores_that_are_classes():
    assert list(store_classes()) == ["local", "sharded", "served"]


def test_both_views_of_a_registry_follow_each_other():
    clicks, pairs = {}, {}
    joint = ByTask(click=clicks, retrieval=pairs)

    class Click(outsize.ClickDataConfig):
        pass

    class Pairs(outsize.RetrievalDataConfig):
        pass

    clicks["a"] = Click
    joint["b"] = Pairs
    assert pairs == {"b": Pairs}
    assert dict(joint) == {"a": Click, "b": Pairs}
    joint["a"] = Pairs
    assert (clicks, pairs) == ({}, {"b": Pairs, "a": Pairs})
    del joint["a"]
    assert list(joint) == ["b"]
    with pytest.raises(KeyError):
        del joint["a"]
    with pytest.raises(ConfigError, match=r"must be one of click, retrieval, but is None"):
        joint["c"] = int


def test_a_configuration_without_a_name_is_refused_in_words():
    class Nameless(outsize.data.SyntheticConfig):
        pass

    with pytest.raises(ConfigError, match="Nameless has no name that a run file could use"):
        name_of(outsize.DATA, Nameless())
    with pytest.raises(ConfigError, match="Nameless has no name"):
        encode(RunConfig(data=Nameless()))
