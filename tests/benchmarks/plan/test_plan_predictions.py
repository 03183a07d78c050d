"""The page of predictions beside measurements."""

from benchmarks.plan.predictions import CELLS, NEGATIVES, RUNS, STORES, table

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
