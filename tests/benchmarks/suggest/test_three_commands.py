"""Suggested runs beside tuned ones."""

from benchmarks.het.staleness_runs import train_cells
from benchmarks.suggest.three_commands import finished, run_tree, table

SUGGESTED = {
    "data": {"kind": "tabular", "path": ["a.csv"], "label": "y", "categorical": ["a"],
             "vocabulary": {"min_count": 10}, "split": {"kind": "hash"}, "missing": ["?"]},
    "model": {"kind": "dcnv2"},
}  # fmt: skip
TUNED = {
    "data": {"kind": "tabular", "path": ["b.parquet"], "label": "y", "categorical": ["a", "b"],
             "vocabulary": {"min_count": 2}, "split": {"kind": "time"}},
    "model": {"kind": "dlrm"},
    "train": {"epochs": 2},
}  # fmt: skip


def test_a_run_takes_columns_and_split_of_one_file_and_all_else_of_the_other():
    tree = run_tree(SUGGESTED, TUNED, "tuned", "suggested", "c.csv")
    assert tree["data"]["categorical"] == ["a"]
    assert tree["data"]["split"] == {"kind": "hash"}
    assert tree["data"]["vocabulary"] == {"min_count": 2}
    assert tree["data"]["path"] == ["c.csv"]
    assert (tree["model"], tree["train"]) == ({"kind": "dlrm"}, {"epochs": 2})
    own = run_tree(SUGGESTED, TUNED, "suggested", "suggested", "a.csv")
    assert own == SUGGESTED


def test_what_is_more_than_the_limit_below_is_bold():
    rows = [
        {"data_set": name, "columns": "suggested", "run": run, "seed": seed,
         "auc": auc + seed / 1e3}
        for name, pair in {"near": (0.70, 0.705), "far": (0.70, 0.72)}.items()
        for run, auc in zip(("suggested", "tuned"), pair, strict=True) for seed in range(3)
    ]  # fmt: skip
    page = table(rows, share=3)
    assert "Every 3th row" not in page
    assert "| near | the suggestion | 3 | 0.7010 ± 0.0010 | 0.7060 ± 0.0010 | -0.0050 |" in page
    assert "**-0.0200**" in page
    assert "the example |" not in page
    assert "| near | the suggestion | 1 | 0.7000 | 0.7050 | -0.0050 |" in table(
        [*rows[:1], *rows[3:6]], 1
    )


def test_what_was_not_trained_yet_is_left_out(tmp_path):
    assert finished({"num_ranks": 1, "seed": 0}, print, tmp_path) == []
    cell = {"num_ranks": 1, "seed": 1}
    train_cells([cell], print, tmp_path, 1, lambda say, **given: {"auc": 0.7})
    assert finished(cell, print, tmp_path) == [{**cell, "auc": 0.7}]
