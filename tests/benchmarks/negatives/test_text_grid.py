"""The grid of negatives for text encoders: equal trials, chosen on validation, resumable."""

import json
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from benchmarks.negatives import text_grid
from benchmarks.negatives.text_grid_results import table
from benchmarks.negatives.text_methods import METHODS, Cell, Encoder, config_of

SHORT = ["--steps", "8", "--trial-steps", "4", "--batch", "8", "--device", "cpu"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """60 pairs that share a word, a few of them held out."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.parquet"
    splits = ["dev" if i % 10 == 8 else "test" if i % 10 == 9 else "train" for i in range(60)]
    columns = {
        "synopsis": [f"w{i} w{i % 7}" for i in range(60)],
        "description": [f"w{i} w{i % 5} w{i % 3}" for i in range(60)],
        "split": splits,
    }
    parquet.write_table(pa.table(columns), path)
    return path


def run(pairs, work, *words):
    text_grid.main([str(pairs), "--work", str(work), *SHORT, *words])


def finished(work):
    return sorted(path.stem for path in work.glob("*.json"))


def test_every_method_has_equal_trials_and_seeds_and_a_run_that_can_be_made(pairs):
    data = {"kind": "text-pairs", "path": [str(pairs)]}
    for name, method in METHODS.items():
        cell = Cell(name, 32, 0.5, 40.0, 3, 120)
        config = config_of(cell, data, Encoder.small(), "cpu")
        assert config.negatives.beta == 40
        assert config.optimizer.learning_rate == pytest.approx(0.0005)
        pairs_seen = config.train.batch_size * config.train.steps
        assert pairs_seen == 32 * 120  # as many for each
        assert config.negatives.chunk_size == (32 if method.larger > 1 else None)
    assert len({Cell(name, 32, 1, 2, 3, 4).name for name in METHODS}) == len(METHODS)


def test_the_best_validation_chooses_and_a_stopped_grid_goes_on(pairs, tmp_path):
    work, out = tmp_path / "cells", tmp_path / "out"
    words = ["--method", "in-batch", "--rates", "0.5", "2", "--betas", "20", "--seeds", "0", "1"]
    run(pairs, work, *words, "--minutes", "1e-9")
    assert finished(work) == []
    run(pairs, work, *words, "--seeds", "0")
    once = {path.stem: path.stat().st_mtime_ns for path in work.glob("*.json")}
    assert len(once) == 3
    run(pairs, work, *words, "--out", str(out))
    assert len(finished(work)) == 4
    assert {name: (work / f"{name}.json").stat().st_mtime_ns for name in once} == once
    (written,) = out.glob("*.json")
    assert written.stem == "text-negatives-debian-cpu"
    results = json.loads(written.read_text())
    assert "CELLS" in results["command"]
    assert str(tmp_path) not in results["command"]
    (row,) = results["rows"]
    best = max(row["trials"], key=lambda found: found["validation"]["mrr@10"])
    assert all(trial["test"] == {} for trial in row["trials"])  # nothing is chosen by the test
    assert [found["cell"]["seed"] for found in row["runs"]] == [0, 1]
    for found in row["runs"]:
        assert (found["cell"]["rate"], found["cell"]["beta"]) == (best["cell"]["rate"], 20)
        assert 0 < found["test"]["mrr@10"] <= 1
        assert found["peak_bytes"] > 0
        assert found["train_s"] > 0
    assert "| in-batch | 8 |" in written.with_suffix(".md").read_text()
    assert "| 2 |" in table(results)


def test_a_run_that_another_process_is_at_is_left_to_it(pairs, tmp_path):
    grid = text_grid.Grid({}, Encoder.small(), "cpu", tmp_path)
    cell = Cell("in-batch", 8, 1.0, 20.0, 0, 4)
    with text_grid._claimed(tmp_path / f"{cell.name}.lock") as is_ours:
        assert is_ours
        assert grid.run(cell, print) is None


@pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not there"
)
@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_sentence_transformers_is_compared(pairs, tmp_path):
    from tiny_texts import write_bare_bert

    from outsize.integrations.sentence_transformers import assemble_model

    bare = write_bare_bert(tmp_path / "bare")
    assemble_model(bare, max_seq_length=12).save_pretrained(str(tmp_path / "bert"))
    words = ["--model", str(tmp_path / "bert"), "--max-tokens", "12", "--rates", "9",
             "--betas", "20", "--seeds", "0", "--batch", "8", "12",
             "--out", str(tmp_path / "out")]  # fmt: skip
    names = ["in-batch", "cache, joined with the batch"]
    for name in names:
        words += ["--method", name]
    run(pairs, tmp_path / "cells", *words)
    (written,) = (tmp_path / "out").glob("*.json")
    results = json.loads(written.read_text())
    assert results["encoder"] == "bert, fine-tuned (12 tokens)"
    found = [(row["batch"], row["method"]) for row in results["rows"]]
    assert found == [(batch, name) for batch in (8, 12) for name in names]
