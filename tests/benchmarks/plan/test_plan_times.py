"""The page of planned times beside measured ones."""

from benchmarks.plan.planned_cells import STORES
from benchmarks.plan.times import CELLS, table


def results(load=0.5, **changes):
    line = {
        "turn": 0, "ranks": 2, "store": "local", "predicted_s": 0.040, "measured_s": 0.042,
        "parts": {"dense": 0.03, "rows": 0.002, "exchange": 0.008},
        "predicted_processor_s": 0.032, "measured_processor_s": 0.034,
    }  # fmt: skip
    lines = [{**line, **changes}, line, {**line, "turn": 2, **changes}]
    return {"load": load, "cores": 2, "lines": lines}


def test_medians_over_turns_are_compared():
    page = table(results())
    assert "| 2 | local | 3 | 30.0 | 2.0 | 8.0 | 40.0 / 42.0 (-5%) | 32.0 / 34.0 (-6%) |" in page
    assert "busy" not in page
    assert "40.0 / 42.0" in table({**results(), "lines": results(measured_s=0.1)["lines"][1:2]})


def test_what_is_too_far_off_is_bold_and_a_busy_machine_is_named():
    page = table(results(load=9.0, measured_s=0.2))
    assert "**40.0 / 200.0 (-80%)**" in page
    assert "The machine was busy with other work" in page


def test_cells_name_stores_that_exist():
    assert set(CELLS) <= set(STORES)
