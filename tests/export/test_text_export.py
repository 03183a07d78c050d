"""Text models are exported with their tokenizer and items, and searched with texts."""

import json
import shutil

import numpy as np
import pytest
import torch
from function_runs import MERGE, functions_tree, write_package
from processes import run

import outsize
from outsize.cli import main
from outsize.errors import ConfigError, DataError, ExportError
from outsize.export.quantization import Quantization
from outsize.files import write_tensors
from outsize.training.config import RunConfig
from outsize.training.export_run import export_run
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import choose_checkpoint, load_weights
from outsize.training.strict_toml import decode
from outsize.training.tasks import TASKS

STACK = '''

class Stack:
    def push(self, value):
        """Put a value on top of the stack."""
        self.values.append(value)
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, its task with the best weights, and its export; tests only read them."""
    folder = tmp_path_factory.mktemp("functions")
    write_package(folder / "packages", MERGE + STACK)
    tree = functions_tree(folder / "packages")
    config = decode(RunConfig, tree, "test")
    result = outsize.train(config, folder / "run", quiet=True)
    export_run(result.out, folder / "exported")
    task = TASKS["retrieval"](config)
    saved = RunFolder(result.out)
    load_weights(saved, config, task.model, choose_checkpoint(saved).folder)
    return task, folder


@pytest.fixture(scope="module")
def exported(trained):
    return outsize.load_exported(trained[1] / "exported")


def test_an_export_finds_functions_by_what_they_do(exported):
    found = exported.search(["merge sorted lists", "push a value on the stack"], k=3)
    assert found.items[0][0] == "shelf.merge"
    assert found.items[1][0] == "shelf.Stack.push"
    assert found.scores.shape == (2, 3)
    assert found.scores.dtype == np.float32
    assert (np.diff(found.scores) <= 0).all()


def test_what_is_found_can_be_shown(exported, trained):
    text = exported.item_text("shelf.merge")
    assert text.startswith("def merge(*iterables):")
    assert "Merge several" not in text
    facts = exported.item_facts("shelf.merge")
    assert facts == {"file": str(trained[1] / "packages" / "shelf.py"), "line": 2}
    with pytest.raises(ConfigError, match=r"no item 'shelf.merg'; there are shelf.merge"):
        exported.item_text("shelf.merg")


def test_vectors_are_those_of_the_run(exported, trained):
    task, _ = trained
    texts = task.data.texts
    task.model.eval()
    rows = torch.arange(task.data.queries.num_rows)
    queries = exported.encode_query_texts(texts.queries.texts.to_pylist())
    torch.testing.assert_close(queries, task.model.encode_queries(task.data.queries.take(rows)))
    assert queries.dtype == torch.float32
    items = exported.encode_item_texts(texts.items.texts.to_pylist())
    torch.testing.assert_close(items, exported.searcher.vectors)


def test_search_is_exact_and_leaves_out_what_is_excluded(exported):
    queries = ["take the word7", "???", ""]
    scores = exported.encode_query_texts(queries) @ exported.searcher.vectors.T
    best = scores.topk(4).values.numpy()
    np.testing.assert_allclose(exported.search(queries, 4).scores, best, rtol=1e-5)
    (first, *_), _, _ = exported.search(queries, 1).items
    without = exported.search(queries, 1, exclude=[[first], [], []])
    assert without.items[0][0] != first
    with pytest.raises(DataError, match="exclude has 1 lists"):
        exported.search(queries, 1, exclude=[[]])
    with pytest.raises(ConfigError, match="this model searches for texts"):
        exported.search([{"query": "a"}], 1)
    with pytest.raises(ConfigError, match="k must be >= 1"):
        exported.search(["a"], 0)
    assert len(exported.search("take the word7", 500).items[0]) == len(exported.searcher.names)


def test_a_fresh_process_searches_without_the_data(trained, tmp_path):
    shutil.copytree(trained[1] / "exported", tmp_path / "moved")
    code = (
        "import sys, outsize; model = outsize.load_exported(sys.argv[1]);"
        "print(model.search(['merge sorted lists'], 1).items[0][0]);"
        "assert 'outsize.data.texts.pydocs' not in sys.modules"
    )
    done = run("-W", "error", "-c", code, tmp_path / "moved")
    assert done.stdout == "shelf.merge\n", done.stderr


@pytest.mark.parametrize("method", ["int8", Quantization("pq", 16, 64, min_rows=10)])
def test_tables_of_texts_can_be_quantized(trained, tmp_path, method):
    written = export_run(trained[1] / "run", tmp_path / "small", quantize=method)
    assert written["quantization"]["table_bytes"] < written["quantization"]["table_bytes_before"]
    model = outsize.load_exported(tmp_path / "small")
    assert model.search(["merge sorted lists"], 1).items == [["shelf.merge"]]


def test_the_card_says_how_to_search(trained):
    folder = trained[1] / "exported"
    assert 'model.search(["a query"], k=10)' in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["format"] == 5


@pytest.mark.parametrize("words", [["predict"], ["evaluate"]])
def test_files_of_rows_are_refused_in_words(trained, tmp_path, capsys, words):
    (tmp_path / "pairs.csv").write_text("query,item\na,b\n")
    for folder in ["exported", *(["run"] if words == ["evaluate"] else [])]:
        with pytest.raises(SystemExit) as caught:
            main([*words, str(trained[1] / folder), str(tmp_path / "pairs.csv")])
        assert caught.value.code == 2
        message = capsys.readouterr().err
        assert "text" in message
        assert "Traceback" not in message


@pytest.mark.parametrize(
    ("name", "tensors", "fact"),
    [
        ("tokenizer.safetensors", {"words": torch.zeros(1)}, "the tokenizer"),
        ("texts.safetensors", {"text": torch.zeros(1, dtype=torch.uint8)}, "texts.safetensors"),
        (
            "texts.safetensors",
            {"text": torch.zeros(1, dtype=torch.uint8), "text_ends": torch.tensor([1]),
             "fact.file": torch.zeros(1), "fact.line": torch.zeros(1)},
            "texts of 1 items",
        ),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(trained, tmp_path, name, tensors, fact):
    folder = tmp_path / "damaged"
    shutil.copytree(trained[1] / "exported", folder)
    (folder / name).unlink()
    facts = write_tensors(folder / name, tensors)
    config = json.loads((folder / "config.json").read_text())
    config["files"][name] = facts
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=fact):
        outsize.load_exported(folder)
