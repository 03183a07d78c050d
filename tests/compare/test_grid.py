import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from outsize.compare import Grid, compare, pool, read_budgets, read_methods, run_cell
from outsize.compare.cell_progress import GridProgress
from outsize.compare.grid import tables_config
from outsize.compare.run_cell import saved_outcome
from outsize.errors import CellError, ConfigError, DataError
from outsize.tables import TABLES
from outsize.training import train
from outsize.training.config import RunConfig
from outsize.training.probe_config import ProbeConfig
from outsize.training.run_log import RunLog
from outsize.training.strict_toml import decode
from outsize.training.tables_config import ReclusterConfig, TablesConfig


def results(out):
    """(name, time written) of every kept result."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("cells/*/result.json")}


def test_every_method_budget_and_seed_is_a_cell(grid, tmp_path):
    cells = grid.cells(tmp_path)
    assert [cell.name for cell in cells[:5]] == [
        "full-0", "hash-16-0", "ce-concat-16-0", "hash-64-0", "ce-concat-64-0",
    ]  # fmt: skip
    assert len({cell.name for cell in cells}) == len(cells) == 2 * (1 + 2 * 2)
    assert len({cell.config.data for cell in cells}) == 1
    assert [cell.config.seed for cell in cells] == [0] * 5 + [1] * 5


def test_rows_in_a_store_become_tables_of_the_same_width_and_scale(grid, run, tmp_path):
    full, hashed = grid.cells(tmp_path)[:2]
    assert (full.config.embeddings.dim, full.config.embeddings.init_std) == (4, 0.1)
    assert (full.config.embeddings.method, full.config.embeddings.max_params) == ("full", None)
    assert (hashed.config.embeddings.method, hashed.config.embeddings.max_params) == ("hash", 16)
    kept = replace(tables_config(run), columns=2)
    (cell,) = Grid(replace(run, embeddings=kept), ("hash",), (8,), num_seeds=1).cells(tmp_path)[1:]
    assert cell.config.embeddings.columns == 2


def test_budgets_in_bytes_cap_bytes(grid, tmp_path):
    cell = replace(grid, unit="bytes").cells(tmp_path)[1]
    assert (cell.config.embeddings.max_bytes, cell.config.embeddings.max_params) == (16, None)
    assert cell.name == "hash-16B-0"


def test_budgets_are_chosen_by_the_largest_table(run):
    grid = Grid(run, ("hash",), ())
    assert grid.within([10, 100_000]).budgets == (400, 4_000, 40_000)
    assert replace(grid, unit="bytes").within([100_000]).budgets == (1_600, 16_000, 160_000)
    assert grid.within([20]).budgets == (4, 8)  # no less than a row


def test_methods_and_budgets_are_read_from_words():
    assert read_methods(["hash,ce-concat", "hash", "full"]) == ("hash", "ce-concat")
    assert read_methods([]) == tuple(method for method in TABLES if method != "full")
    assert read_budgets(["64,16", "4_096"]) == (16, 64, 4096)
    assert read_budgets([]) == ()


def test_a_comparison_holds_means_over_seeds(done, grid):
    out, plain = done
    assert plain["full"]["num_seeds"] == 2
    assert [point["budget"] for point in plain["methods"]["hash"]["points"]] == [16, 64]
    losses = [
        json.loads((out / "cells" / f"hash-16-{seed}" / "result.json").read_text())
        for seed in (0, 1)
    ]
    mean = sum(found["result"]["test"]["loss"] for found in losses) / 2
    assert plain["methods"]["hash"]["points"][0]["loss"]["mean"] == pytest.approx(mean)
    assert json.loads((out / "compare.json").read_text()) == plain


def test_a_cell_equals_the_run_it_stands_for(done, grid, tmp_path):
    out, _ = done
    cell = grid.cells(tmp_path)[-1]
    kept = json.loads((out / "cells" / cell.name / "result.json").read_text())["result"]
    result = train(cell.config, quiet=True)
    assert kept["test"]["loss"] == result.test["loss"]
    assert kept["params"] == result.memory.num_parameters
    assert kept["total_bytes"] == result.memory.total_bytes == sum(kept["bytes"].values())


def test_finished_cells_leave_no_checkpoints(done):
    out, _ = done
    assert not list(out.glob("cells/*/checkpoint"))
    assert len(list(out.glob("cells/*/metrics.jsonl"))) == 10


def test_a_second_call_trains_nothing(done, grid, monkeypatch):
    out, plain = done
    before = results(out)
    monkeypatch.setattr(run_cell, "train", None)  # a call would raise
    again = compare(grid, out, workers=0, quiet=True)
    assert again["methods"] == plain["methods"]
    assert results(out) == before


def test_a_wider_grid_trains_only_what_is_new(done, grid, tmp_path):
    out = shutil.copytree(done[0], tmp_path / "out")
    before = results(out)
    compare(replace(grid, budgets=(16, 32, 64), num_seeds=1), out, workers=0, quiet=True)
    after = results(out)
    assert set(after) - set(before) == {"hash-32-0", "ce-concat-32-0"}
    assert before.items() <= after.items()


def test_another_run_in_the_same_folder_is_refused(done, grid):
    out, _ = done
    other = replace(grid, run=replace(grid.run, train=replace(grid.run.train, batch_size=50)))
    with pytest.raises(ConfigError, match=r"train.batch_size was 100 and is now 50.*--out"):
        compare(other, out, workers=0, quiet=True)


def test_a_stopped_cell_goes_on_where_it_was(done, grid, tmp_path, monkeypatch):
    out, _ = done
    cell = grid.cells(tmp_path)[1]
    append = RunLog.append

    def interrupt(log, line):
        append(log, line)
        if line["step"] == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunLog, "append", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_cell.run_cell(cell)
    monkeypatch.setattr(RunLog, "append", append)
    assert [path.name for path in (cell.folder / "checkpoint").iterdir()]
    steps = []
    monkeypatch.setattr(RunLog, "truncate", lambda log, step, facts: steps.append(step))
    outcome = run_cell.run_cell(cell)
    assert steps == [2]  # the last checkpoint
    whole = json.loads((out / "cells" / cell.name / "result.json").read_text())["result"]
    assert outcome.result["test"] == whole["test"]


def test_a_method_that_does_not_fit_is_no_failure(run, tmp_path):
    grid = Grid(run, ("hash",), (2, 16), num_seeds=1)
    plain = compare(grid, tmp_path, workers=0, quiet=True)
    assert plain["methods"]["hash"]["does_not_fit"] == [2]
    assert [point["budget"] for point in plain["methods"]["hash"]["points"]] == [16]
    assert "hash-2-0: does not fit" in (tmp_path / "compare.html").read_text()
    before = results(tmp_path)
    compare(grid, tmp_path, workers=0, quiet=True)
    assert results(tmp_path) == before


@pytest.mark.parametrize("error", [ConfigError("a mistake"), RuntimeError("a\ndefect")])
def test_a_failing_cell_leaves_the_others_alone(run, tmp_path, monkeypatch, error):
    def fail_once(config, out, **options):
        if config.embeddings.max_params == 16:
            raise error
        return train(config, out, **options)

    grid = Grid(run, ("hash",), (16, 64), num_seeds=1)
    monkeypatch.setattr(run_cell, "train", fail_once)
    with pytest.raises(CellError, match=r"1 of 3 cells failed: hash-16-0; .*a (mistake|defect)"):
        compare(grid, tmp_path, workers=0, quiet=True)
    assert set(results(tmp_path)) == {"full-0", "hash-64-0"}
    assert json.loads((tmp_path / "compare.json").read_text())["failed"].keys() == {"hash-16-0"}
    assert (tmp_path / "cells" / "hash-16-0" / "error.txt").exists() == (
        not isinstance(error, ConfigError)
    )
    monkeypatch.undo()
    assert compare(grid, tmp_path, workers=0, quiet=True)["failed"] == {}


def test_a_damaged_result_is_named(run, tmp_path):
    grid = Grid(run, ("hash",), (16,), num_seeds=1)
    compare(grid, tmp_path, workers=0, quiet=True)
    path = tmp_path / "cells" / "full-0" / "result.json"
    kept = json.loads(path.read_text())
    result = kept["result"]
    shapes: list[object] = [
        [], 3, {}, {**kept, "status": "done"}, {**kept, "reason": None}, {**kept, "result": []},
        {**kept, "result": {}}, {**kept, "result": {**result, "params": "3"}},
        {**kept, "result": {**result, "test": {"auc": 0.5}}},
        {**kept, "result": {**result, "test": {**result["test"], "loss": "low"}}},
        {**kept, "result": {**result, "total_bytes": -1}},
    ]  # fmt: skip
    for text in ("{", "", "[" * 200_000, *map(json.dumps, shapes)):
        path.write_text(text)
        with pytest.raises(DataError, match=r"full-0/result.json is damaged: delete it") as caught:
            compare(grid, tmp_path, workers=0, quiet=True)
        assert "\n" not in str(caught.value)


def test_only_checkpoints_are_removed_with_a_finished_cell(run, tmp_path):
    grid = Grid(run, ("hash",), (16,), num_seeds=1)
    mine = tmp_path / "cells" / "full-0" / "checkpoint" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    compare(grid, tmp_path, workers=0, quiet=True)
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "cells" / "hash-16-0" / "checkpoint").exists()


def test_processes_come_to_the_same(done, grid, tmp_path):
    _, plain = done
    found = compare(replace(grid, num_seeds=1), tmp_path, workers=1, quiet=True)
    hashed = found["methods"]["hash"]["points"][0]["loss"]["mean"]
    whole = plain["methods"]["hash"]["points"][0]["loss"]
    assert min(abs(hashed - whole["low"]), abs(hashed - whole["high"])) < 1e-6


def die(cell):
    """What the system does to a process that takes too much memory."""
    os._exit(9)


def test_a_process_that_dies_takes_one_cell_along(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "run_cell", die)
    cells = grid.cells(tmp_path)[:2]
    with GridProgress(2, 0, Console(quiet=True)) as progress:
        outcomes = list(pool.run_cells(cells, 2, progress))
    assert {outcome.cell.name for outcome in outcomes} == {"full-0", "hash-16-0"}
    assert {outcome.reason for outcome in outcomes} == {
        "its process died, perhaps for lack of memory"
    }


LONG = """
[data]
num_train = 10_000_000
num_categorical = 3
largest_vocabulary = 100
[train]
batch_size = 100
log_every = 1
"""


def test_an_interruption_saves_the_cells_and_ends_their_processes(tmp_path):
    (tmp_path / "run.toml").write_text(LONG)
    command = ["-m", "outsize", "compare", "run.toml", "--tables", "hash", "--budgets", "64"]
    with subprocess.Popen(
        [sys.executable, *command, "--workers", "1", "--out", "out"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # else as the tests run
    ) as process:
        metrics = tmp_path / "out" / "cells" / "full-0" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text()) and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()  # or leaving this block would wait for it
    assert process.returncode == 130
    assert "the same command" in err
    assert "Traceback" not in err
    assert list((tmp_path / "out" / "cells" / "full-0" / "checkpoint").iterdir())
    assert not _lives_in(tmp_path)


def _lives_in(folder):
    """Whether a process still works in a folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/cwd") == str(folder):
                found.append(name)
        except OSError:
            pass
    return found


def test_tables_are_compared_by_the_classes_of_nodes(tmp_path):
    nodes = {
        "data": {"kind": "synthetic-graph", "num_nodes": 200, "num_classes": 3},
        "model": {"kind": "graphsage", "hidden": 8},
        "graph": {"fan_out": [3, 3]},
        "embeddings": {"dim": 4},
        "train": {"batch_size": 64, "device": "cpu"},
    }
    config = decode(RunConfig, nodes, "test")
    found = compare(Grid(config, ("hash",), (64,), num_seeds=1), tmp_path, workers=0, quiet=True)
    assert found["vocabularies"] == {"node": 200}
    assert 0 < found["full"]["accuracy"]["mean"] < 1
    assert found["methods"]["hash"]["points"][0]["params"] == 64
    assert 0 < found["bayes"]["accuracy"] <= 1
    assert "accuracy" in (tmp_path / "compare.md").read_text()
    assert "**cross-entropy**" in (tmp_path / "compare.md").read_text()
    again = compare(Grid(config, ("hash",), (64,), num_seeds=1), tmp_path, workers=0, quiet=True)
    assert again["full"] == found["full"], "finished cells are not trained again"


def test_links_are_not_compared():
    links = {
        "data": {"kind": "synthetic-graph", "links": {}},
        "model": {"kind": "graphsage"},
        "graph": {"predict": "links"},
        "negatives": {"kind": "in-batch"},
    }
    with pytest.raises(ConfigError, match="but this is a link prediction run"):
        Grid(decode(RunConfig, links, "test"), ("hash",), (64,))


@pytest.mark.parametrize("unit", ["parameters", "bytes"])
def test_full_tables_are_quantized_to_the_budget_and_may_be_trained_on(run, unit, tmp_path):
    budget = 200 if unit == "parameters" else 500
    grid = Grid(run, ("pq", "pq-tuned"), (budget,), unit, num_seeds=1)
    found = compare(grid, tmp_path, workers=0, quiet=True)
    outcomes = {cell.method: saved_outcome(cell).result for cell in grid.cells(tmp_path)}
    size = "params" if unit == "parameters" else "total_bytes"
    for method in ("pq", "pq-tuned"):
        assert outcomes[method][size] < outcomes["full"][size]
        assert outcomes[method]["test"]["auc"] > 0.4
    assert outcomes["pq"]["total_bytes"] == outcomes["pq-tuned"]["total_bytes"]
    assert outcomes["pq"]["test"]["loss"] != outcomes["pq-tuned"]["test"]["loss"]
    assert "the full tables must fit in training" in (tmp_path / "compare.md").read_text()
    assert set(found["methods"]) >= {"pq", "pq-tuned"}
    assert compare(grid, tmp_path, workers=0, quiet=True)["methods"] == found["methods"]


def test_quantized_tables_that_do_not_fit_are_no_failure(run, tmp_path):
    grid = Grid(run, ("pq",), (3,), num_seeds=1)
    compare(grid, tmp_path, workers=0, quiet=True)
    assert [saved_outcome(cell).status for cell in grid.cells(tmp_path)] == [
        "finished",
        "does not fit",
    ]


def test_other_methods_are_compared_without_the_probe_of_cce(run, tmp_path):
    tables = TablesConfig(
        dim=4, method="cce", max_params=64, recluster=ReclusterConfig(probe=ProbeConfig())
    )
    grid = Grid(replace(run, embeddings=tables), ("hash", "cce"), (64,), num_seeds=1)
    probed = {
        cell.method: cell.config.embeddings.probe is not None for cell in grid.cells(tmp_path)
    }
    assert probed == {"full": False, "hash": False, "cce": True}
