"""The comparison on graphs: its cells are runs, and its tables say what they measured."""

import outsize
from benchmarks.het import graph_staleness
from benchmarks.het.graph_staleness import cells_of, graph_run, read_curve
from outsize.training.run_folder import RunFolder

SIZES = {"batch_size": 32, "epochs": 2, "num_nodes": 300, "dim": 4}


def test_a_cell_is_a_run_whose_curve_has_steps_bytes_and_seconds(tmp_path):
    (cell,) = [c for c in cells_of(SIZES, 1, quick=True) if "policy" in c]
    config = graph_run(**{**cell, "num_ranks": 1})
    assert (config.embeddings.cache.share, config.embeddings.cache.eviction) == (0.05, "lru")
    outsize.train(config, tmp_path, quiet=True)
    lines = list(RunFolder(tmp_path).metrics())
    first, last = read_curve(lines, 32)
    assert 2 * first["step"] == last["step"] == max(line["step"] for line in lines)
    assert 0 < first["seconds"] < last["seconds"]
    assert 0 <= first["bytes"] <= last["bytes"]
    assert all(0 <= point["accuracy"] <= 1 for point in (first, last))


def test_every_mode_has_every_seed_and_caches_come_last():
    cells = cells_of(SIZES, 3, quick=False)
    modes = [cell for cell in cells if "policy" not in cell]
    assert len(modes) == 3 * (5 + 2)
    assert {(cell["share"], cell["policy"]) for cell in cells[len(modes) :]} == {
        (share, policy)
        for share in (0.05, 0.1, 0.2, 0.4)
        for policy in ("lru", "lfu", "fading-lfu")
    }


def made_up(mode, seed, sent, accuracy, **settings):
    point = {"step": 40, "bytes": sent, "seconds": 1.0, "accuracy": accuracy}
    return {"mode": mode, "seed": seed, "num_ranks": 2, "sent_bytes": {"rows": sent},
            "test_accuracy": accuracy, "bayes_accuracy": 0.9, "hit_rate": 0.5, "largest_lag": 3,
            "step_ms": 7.0, "run_steps": 40, "curve": [point], **settings}  # fmt: skip


def test_differences_are_taken_seed_by_seed_and_shown_with_their_range():
    rows = [
        made_up("synchronous", 0, 4e6, 0.80),
        made_up("synchronous", 1, 4e6, 0.70),
        made_up("s = 10", 0, 1e6, 0.79),
        made_up("s = 10", 1, 2e6, 0.72),
        made_up("s = 10", 0, 3e6, 0.79, share=0.2, policy="lru"),
    ]
    page = graph_staleness.table({"sizes": SIZES, "rows": rows})
    assert "| 2 | s = 10 | 1.5 | 62.5% (50.0% to 75.0%) | 0.500 | 3 | 0.7550 | " in page
    assert "| +0.0050 (-0.0100 to +0.0200) | 7 |" in page
    assert "| s = 10 | 0.7550 (2 MB) |" in page
    assert "| 20% | 0.500 (3.0 MB) |" in page
    assert "The best possible test accuracy is 0.9000." in page
