"""The page of predictions beside measurements."""

import pytest

from benchmarks.plan.planned_cells import CELLS, NEGATIVES, RUNS, STORES
from benchmarks.plan.predictions import cells_to_keep, table
from outsize.reporting.environment import environment

MEMORY = {"cpu": {"parameters": 1000, "cache": 500}}
FOUND = {"memory": MEMORY, "peak": 1000, "sent": 1000, "hit_rate": 0.5, "checkpoint": 2000}


def page(**changes):
    cell = {"data": "d", "store": "s", "negatives": "", "measured": FOUND}
    line = {**cell, "predicted": {**FOUND, **changes}}
    return table({"num_ranks": 2, "steps": 3, "cells": [line]}).splitlines()[5]


def test_what_lies_within_its_bound_is_plain():
    assert "**" not in page(peak=1140, sent=910, hit_rate=0.52)
    assert page(peak=1140).split("|")[5].strip() == "1.1 kB / 1.0 kB (+14.0%)"


def test_what_lies_outside_is_bold():
    assert "**1.2 kB / 1.0 kB (+16.0%)**" in page(peak=1160)
    assert "**" in page(sent=880)
    assert "**0.540 / 0.500**" in page(hit_rate=0.54)
    assert "not equal" in page(memory={"cpu": {"parameters": 1000, "cache": 501}})


def test_a_run_without_traffic_has_none_in_its_line():
    assert page(sent=None, hit_rate=None).count("–") == 3


def test_cells_name_runs_stores_and_negatives_that_exist():
    for cell in CELLS:
        assert cell.data in RUNS
        assert cell.store in STORES
        assert cell.negatives in ("", *NEGATIVES)


def test_cells_of_one_data_set_are_measured_again_and_the_others_kept_with_their_day():
    lines = [
        {"data": c.data, "store": c.store, "negatives": c.negatives, "measured": FOUND}
        for c in CELLS
    ]
    facts = {**environment(), "measured_at": "2020-01-02 03:04 UTC"}
    earlier = {"environment": facts, "steps": 3, "cells": lines}
    kept = cells_to_keep(earlier, "ml1m", 3)
    assert [cell for cell in CELLS if cell not in kept] == [c for c in CELLS if c.data == "ml1m"]
    assert {line["measured_at"] for line in kept.values()} == {"2020-01-02 03:04 UTC"}
    new = {**lines[4], "measured_at": "2020-02-03 04:05 UTC"}
    cells = [{**line, "predicted": FOUND} for line in (kept[CELLS[0]], new)]
    shown = table({"num_ranks": 2, "steps": 3, "cells": cells})
    assert "Measured: synthetic (2020-01-02); ml1m (2020-02-03)." in shown


def test_cells_of_another_machine_or_length_are_not_kept():
    earlier = {"environment": {**environment(), "cpu": "another"}, "steps": 3, "cells": []}
    with pytest.raises(SystemExit, match="another machine"):
        cells_to_keep(earlier, "ml1m", 3)
    with pytest.raises(SystemExit, match="steps"):
        cells_to_keep({**earlier, "environment": environment()}, "ml1m", 4)
    with pytest.raises(SystemExit, match="must be one of"):
        cells_to_keep(earlier, "ml1n", 3)
