"""The page of planned times over a link beside measured ones."""

from benchmarks.plan.link_times import table


def line(taken, **planned):
    times = {"dense_s": 0.020, "rows_s": 0.005, "exchange_s": 0.025, "step_s": 0.050, **planned}
    return {"link": "1Gbit", "mode": "synchronous", "step_s": taken, "planned": times}


def test_medians_over_turns_are_compared_and_what_is_too_far_off_is_bold():
    lines = [line(0.052), line(0.050, step_s=0.049), line(0.100, exchange_s=0.026)]
    page = table({"turns": 3, "steps": 60, "lines": lines})
    assert "| 1Gbit | synchronous | 20.0 | 5.0 | 25.0 | 50.0 | 52.0 | -4% |" in page
    far = table({"turns": 1, "steps": 60, "lines": lines[2:]})
    assert "| 1Gbit | synchronous | 20.0 | 5.0 | 26.0 | 50.0 | 100.0 | **-50%** |" in far
