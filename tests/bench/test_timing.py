"""Medians and spreads of benchmarks, by a clock that only the variants move."""

import pytest

from outsize.bench import timing


def test_variants_take_turns_and_keep_median_and_spread():
    now = 0.0
    called = []
    steps = {"slow": iter(range(1, 100)), "fast": iter([0.5] * 100)}

    def run(name):
        nonlocal now
        called.append(name)
        now += next(steps[name])

    variants = {name: lambda name=name: run(name) for name in steps}
    found = timing.time_in_turns(variants, rounds=11, calls=2, warmup=1, clock=lambda: now)
    assert called[:2] == ["slow", "fast"]  # untimed
    assert called[2:] == ["slow", "slow", "fast", "fast"] * 11
    # The k-th round of the slow one has calls of 2k + 2 and 2k + 3 seconds.
    assert found["slow"] == timing.Timing(median_s=12.5, p10_s=4.5, p90_s=20.5, rounds=11)
    assert found["fast"] == timing.Timing(0.5, 0.5, 0.5, 11)
    assert found["fast"].in_ms()["p90_ms"] == pytest.approx(500)
