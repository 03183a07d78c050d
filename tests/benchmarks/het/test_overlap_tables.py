"""The tables of overlapped exchanges say what their runs measured."""

import pytest

from benchmarks.het import overlap, overlap_quality
from benchmarks.het.staleness_runs import MODES, synthetic_run


def times(mode, step_s, exchange_s, wait_s):
    return {"dim": 128, "mode": mode, "step_s": step_s, "exchange_s": exchange_s, "wait_s": wait_s}


def test_what_is_hidden_is_the_time_that_a_step_saves_of_its_exchange():
    cells = []
    for plain, overlapped in overlap.PAIRS.items():
        cells.append(times(plain, [0.10, 0.12], [0.06, 0.08], [None, None]))
        cells.append(times(overlapped, [0.07, 0.06], [0.09, 0.09], [0.01, 0.02]))
    assert overlap.hidden_shares(cells[0], cells[1]) == pytest.approx([0.5, 0.75])
    text = overlap.table({"sizes": {"steps": 20, "turns": 2}, "times": cells})
    assert (
        "| 128 | synchronous | 110.0 (100.0 to 120.0) | 1.00 | 1.00 | 70.0 | 70.0 |  |  |" in text
    )
    assert "| 65.0 (60.0 to 70.0) | 1.69 | 1.69 | 90.0 | 15.0 | 83% | 62% (50% to 75%) |" in text


def test_seconds_are_those_of_a_step_and_a_rank_in_the_second_half():
    line = {"split": "train", "examples_per_s": 10240.0, "exchange_s": 1.0, "wait_s": 0.5}
    early = {**line, "examples_per_s": 1.0, "exchange_s": 99.0}
    cell = times("synchronous", [], [], [])
    overlap._note(cell, [early, early, line, line, {"split": "rows"}], steps=40)
    assert cell["step_s"] == [pytest.approx(0.1)]
    assert (cell["exchange_s"], cell["wait_s"]) == ([0.05], [0.025])


def test_auc_is_compared_seed_by_seed():
    rows = [
        {"mode": mode, "test_auc": auc - (0.01 * seed if "overlapped" in mode else 0.0)}
        for seed, auc in enumerate((0.70, 0.80))
        for pair in overlap_quality.PAIRS.items()
        for mode in pair
    ]
    sizes = overlap_quality._QUICK
    text = overlap_quality.table({"sizes": sizes, "seeds": 2, "rows": rows})
    assert "| synchronous | 0.7500 (0.7000 to 0.8000) |  |" in text
    assert "| 0.7450 (0.7000 to 0.7900) | -0.00500 (-0.01000 to +0.00000) |" in text


def test_every_mode_with_overlap_differs_from_the_one_without_in_nothing_else():
    for plain, overlapped in {**overlap.PAIRS, **overlap_quality.PAIRS}.items():
        sizes = {"num_ranks": 2, "batch_size": 8, "steps": 4, "skew": 1.0}
        before, after = (synthetic_run(MODES[m], **sizes).embeddings for m in (plain, overlapped))
        assert (before.overlap, after.overlap) == (False, True)
        assert (before.wire, before.cache, before.store) == (after.wire, after.cache, after.store)
