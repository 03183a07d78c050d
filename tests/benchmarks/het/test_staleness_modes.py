"""The comparison of modes runs, and its tables say what its cells measured."""

import pytest

from benchmarks.het import staleness, staleness_epochs, staleness_widths

QUICK = {"num_ranks": 2, "batch_size": 16, "steps": 12, "rows_per_feature": 200, "num_test": 500}


def test_cells_are_whole_runs_with_their_bytes():
    modes = ("synchronous", "s = 0", "read 100, write 10, int8")
    cells = [{"mode": mode, "skew": 1.05, **QUICK} for mode in modes]
    told = []
    rows = staleness.train_cells(cells, told.append)
    plain, exact, rounded = rows
    assert [row["mode"] for row in rows] == list(modes)
    assert len(told) == 3
    assert exact["test_auc"] == plain["test_auc"], "no staleness, no difference"
    assert exact["sent_bytes"]["gradients"] == plain["sent_bytes"]["gradients"]
    assert sum(rounded["sent_bytes"].values()) < 0.5 * sum(plain["sent_bytes"].values())
    text = staleness.table({"sizes": QUICK, "rows": rows})
    assert text.count("+0.00000") == 2
    assert f"{sum(plain['sent_bytes'].values()) / 1e6:,.1f}" in text


def test_a_cell_that_fails_says_which(monkeypatch):
    monkeypatch.setattr(staleness, "run_text", lambda mode, **settings: "seed = 'none'")
    with pytest.raises(RuntimeError, match="synchronous"):
        staleness.train_cells([{"mode": "synchronous", "skew": 1.0, **QUICK}], lambda text: None)


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
