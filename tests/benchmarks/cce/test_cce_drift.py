"""Clustering under drift is measured by when ids were first seen."""

import pytest

from benchmarks.cce.drift import GROUPS, VARIANTS, one_cell, table
from benchmarks.cce.grid import Row

SETTINGS = [
    "data.num_train=2_000", "data.num_validation=500", "data.num_test=1_000",
    "data.vocabulary=[40, 3_000]", "data.num_dense=2", "data.drift=200_000",
    "model.bottom=[8, 16]", "model.top=[8]", "train.batch_size=250", "train.validate_every=8",
]  # fmt: skip


def cell(variant: str) -> Row:
    found = {"run": "examples/drift.toml", "settings": SETTINGS, "variant": variant}
    return {**found, "budget": 512, "seed": 0}


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [{**cell(v), **one_cell(cell(v))} for v in ("none", "2, the last at three quarters")]


def test_groups_divide_the_test_examples(rows):
    for row in rows:
        total, early, later, _ = (row[f"{name}: examples"] for name in GROUPS)
        assert total == 1_000 == early + later
        assert early > 0
        assert later > 0
    never, late = rows
    assert never["last_step"] == 0
    assert never[f"{GROUPS[-1]}: examples"] == 1_000  # without a clustering, all come after it
    assert late["last_step"] == 6
    assert 0 < late[f"{GROUPS[-1]}: examples"] < late[f"{GROUPS[2]}: examples"]
    assert late["all: auc"] == pytest.approx(late["auc"], abs=0.2)


def test_the_page_names_planted_clusters_and_leaves_out_what_has_no_clustering(rows):
    page = table(2_000, rows)
    assert "planted clusters" in page
    assert page.count("[") == 1
    assert "| none | " in page
    assert set(VARIANTS) > {row["variant"] for row in rows}
