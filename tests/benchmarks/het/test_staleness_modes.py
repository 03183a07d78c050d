"""The comparison of modes runs, and its tables say what its cells measured."""

import pytest

from benchmarks.het import staleness, staleness_epochs, staleness_runs, staleness_widths

QUICK = {"num_ranks": 2, "batch_size": 16, "steps": 12, "rows_per_feature": 200, "num_test": 500}


def test_cells_are_whole_runs_with_their_bytes(tmp_path):
    modes = ("synchronous", "s = 0", "read 100, write 10, int8")
    cells = [{"mode": mode, "skew": 1.05, "seed": 0, **QUICK} for mode in modes]
    told = []
    rows = staleness_runs.train_cells(cells, told.append, tmp_path / "cells")
    plain, exact, rounded = rows
    assert [row["mode"] for row in rows] == list(modes)
    assert len(told) == 3
    assert exact["test_auc"] == plain["test_auc"], "no staleness, no difference"
    assert exact["sent_bytes"]["gradients"] == plain["sent_bytes"]["gradients"]
    assert sum(rounded["sent_bytes"].values()) < 0.5 * sum(plain["sent_bytes"].values())
    again = staleness_runs.train_cells(cells, told.append, tmp_path / "cells")
    assert (again, len(told)) == (rows, 3), "finished cells are not trained again"


def test_a_cell_that_fails_says_which(monkeypatch):
    monkeypatch.setattr(staleness_runs, "to_toml", lambda config: "seed = 'none'")
    with pytest.raises(RuntimeError, match="synchronous"):
        staleness_runs.train_cells(
            [{"mode": "synchronous", "skew": 1.0, **QUICK}], lambda text: None
        )


def made_up(mode, seed, sent, auc, **settings):
    return {"mode": mode, "seed": seed, "skew": 1.05, "sent_bytes": {"rows": sent},
            "test_auc": auc, "bayes_auc": None, "hit_rate": 0.5, "largest_lag": 3, "step_ms": 7.0,
            "run_steps": 12, **settings}  # fmt: skip


def test_differences_are_taken_seed_by_seed_and_shown_with_their_range():
    rows = [
        made_up("synchronous", 0, 100e6, 0.70),
        made_up("synchronous", 1, 200e6, 0.80),
        made_up("s = 10", 0, 50e6, 0.69),
        made_up("s = 10", 1, 50e6, 0.80),
        made_up("s = 10", 0, 80e6, 0.70, checkpoint_every=100),
        made_up("s = 10", 1, 80e6, 0.80, checkpoint_every=100),
    ]
    text = staleness.table({"sizes": QUICK, "rows": rows})
    assert "| s = 10 |  | 50.0 | 62.5% (50.0% to 75.0%) | 0.500 | 3 | 0.7450 " in text
    assert "| -0.0050 (-0.0100 to +0.0000) | 7.0 |" in text
    assert "| s = 10 | 100 | 80.0 | 40.0% (20.0% to 60.0%) " in text


def test_all_wires_without_a_cache_are_compared_on_every_data_set(tmp_path):
    cells = staleness.cells_of(QUICK, 3, tmp_path, quick=False)
    for data in (("skew", 1.05), ("skew", 1.22), ("data_set", "us_flights")):
        here = [(c["mode"], c["seed"]) for c in cells if data in c.items()]
        for mode in ("synchronous", "synchronous, bfloat16", "synchronous, int8"):
            assert [seed for name, seed in here if name == mode] == [0, 1, 2]
        assert {mode for mode, _ in here} >= set(staleness.RECOMMENDED)
    saved = {cell["mode"] for cell in cells if "checkpoint_every" in cell}
    assert saved == set(staleness.RECOMMENDED)


def test_a_real_data_set_is_trained_as_its_example_says(tmp_path):
    config = staleness_runs.real_run(
        staleness_runs.MODES["read 100, write 10, int8"],
        data_set="us_flights", folder=str(tmp_path), num_ranks=4, batch_size=512, seed=2,
    )  # fmt: skip
    assert (config.seed, config.train.epochs, config.train.batch_size) == (2, 1, 512)
    rows = config.embeddings
    assert (rows.dim, rows.store, rows.wire, rows.cache.share) == (64, "sharded", "int8", 0.1)
    assert config.data.path == (str(tmp_path / "us_flights_2024_01.parquet"),)


def test_tables_of_epochs_and_widths_have_a_line_per_cell():
    row = {"mode": "synchronous", "model": "WDL", "validation_auc": [0.6, 0.7], "dim": 16,
           "sent_bytes": {"rows": 60e6}, "step_ms": 5.0}  # fmt: skip
    sizes = {**QUICK, "epochs": 2}
    assert "| WDL | synchronous | 0.6000 | 0.7000 |" in staleness_epochs.table(
        {"sizes": sizes, "rows": [row]}
    )
    assert "| 16 | synchronous | 5.00 | 0.0% | 5.0 | 1.00 |" in staleness_widths.table(
        {"sizes": sizes, "rows": [row]}
    )
