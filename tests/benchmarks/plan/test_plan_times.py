"""The page of planned times beside measured ones."""

import os
import subprocess
from time import monotonic

import pytest
import torch

from benchmarks.plan import times
from benchmarks.plan.planned_cells import RUNS, STORES, TIMED
from benchmarks.plan.step_parts import PARTS, StepParts
from benchmarks.plan.timed_rank import timed_run
from benchmarks.plan.times import line_of, table
from outsize.training import RunConfig
from outsize.training.strict_toml import decode

STEP = {"dense": 0.030, "rows": 0.002, "exchange": 0.008, "step": 0.040, "processor": 0.032}


def results(load=0.5, measured_sent=100, **changes):
    line = {
        "turn": 0, "ranks": 2, "data": "ml1m", "store": "local", "planned": STEP,
        "measured": {**STEP, "step": 0.042, "processor": 0.034},
        "planned_sent": 100, "measured_sent": measured_sent,
    }  # fmt: skip
    other = {**line, "measured": {**line["measured"], **changes}}
    return {"load": load, "cores": 2, "lines": [other, line, {**other, "turn": 2}]}


def test_medians_over_turns_are_compared():
    page = table(results())
    assert "| 2 | ml1m | local | 3 | 30.0 / 30.0 | 2.0 / 2.0 | 8.0 / 8.0 |" in page
    assert "| 40.0 / 42.0 (-5%) | 32.0 / 34.0 (-6%) | 100 B / 100 B (+0%) |" in page
    assert "busy" not in page
    few = results(step=0.1)["lines"][1:2]
    assert "40.0 / 42.0" in table({**results(), "lines": few})


def test_what_is_too_far_off_is_bold_and_a_busy_machine_is_named():
    page = table(results(load=9.0, step=0.2, measured_sent=80))
    assert "**40.0 / 200.0 (-80%)**" in page
    assert "**100 B / 80 B (+25%)**" in page
    assert "The machine was busy with other work" in page


def test_cells_name_data_and_stores_that_exist():
    assert set(TIMED) <= set(RUNS)
    assert {store for stores in TIMED.values() for store in stores} <= set(STORES)


def test_a_line_has_medians_over_the_steps_of_all_ranks():
    steps = [dict.fromkeys([*PARTS, *(f"{part}_processor" for part in PARTS)], s)
             for s in (1.0, 2.0, 9.0)]  # fmt: skip
    plan = {"time": {"step_s": 5.0, "dense_s": 3.0, "rows_s": 1.0, "exchange_s": 1.0},
            "traffic": None}  # fmt: skip
    line = line_of(plan, [{"steps": steps, "sent": 0}] * 2)
    assert line["planned"]["processor"] == 4.0
    assert line["measured"]["step"] == 6.0
    assert line["measured"]["dense"] == 2.0
    assert line["measured_sent"] is None


def test_every_step_of_a_run_is_timed_by_part():
    tree = {
        "data": {"num_train": 2000, "num_validation": 100, "num_test": 100, "num_categorical": 4},
        "embeddings": {"dim": 8},
        "train": {"batch_size": 64, "device": "cpu", "steps": 14},
    }
    calls = vars(torch.distributed)["all_reduce"]
    found = timed_run(decode(RunConfig, tree, "a run"))
    assert len(found["steps"]) == 4  # without those that warm up
    assert all(step["dense"] > 0 and step["rows"] > 0 for step in found["steps"])
    assert all(step["exchange"] == 0 for step in found["steps"])
    assert vars(torch.distributed)["all_reduce"] is calls


def test_a_clock_ends_one_part_where_another_begins():
    parts = StepParts()
    with parts.watching(None):
        parts.end_step()
        parts.end_step()
    assert len(parts.steps) == 2
    assert parts.steps[1]["rows"] == parts.steps[1]["exchange"] == 0


def test_what_was_measured_before_time_was_up_is_a_page(monkeypatch, tmp_path):
    line = {key: value for key, value in results()["lines"][0].items() if key != "turn"}
    commands = []

    def group(name, stores, num_ranks, *rest):
        commands.append(num_ranks)
        if num_ranks == 4:
            raise subprocess.TimeoutExpired("a run", 1.0)
        return [{**line, "ranks": num_ranks}]

    monkeypatch.setattr(times, "_python", lambda *words, end: None)
    monkeypatch.setattr(times, "_group", group)
    said = []
    found = times.run(False, said.append, sizes=[2, 4, 8], repeats=2, data=None, work=tmp_path,
                      seconds=60.0)  # fmt: skip
    assert commands == [2, 4]
    assert [each["ranks"] for each in found["lines"]] == [2]
    assert "what follows is left out" in said[-1]
    assert "| 2 | ml1m | local | 1 |" in table(found)


def test_a_process_that_takes_too_long_ends_with_what_it_started(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    grandchild = f"import time; file = open({str(pipe)!r}, 'w'); time.sleep(600)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with pytest.raises(subprocess.TimeoutExpired):
        times._python("-c", child, end=monotonic() + 3.0)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # as soon as nobody is left who could write
    os.close(reader)
