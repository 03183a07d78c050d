from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.training.schedule import ScheduleConfig

DECAYS = st.sampled_from(["linear", "cosine"])
FINALS = st.floats(0, 1)


def factors(schedule: ScheduleConfig, steps: int, total_steps: int) -> list[float]:
    return [schedule.factor(step, total_steps) for step in range(steps)]


def test_the_default_changes_nothing():
    assert factors(ScheduleConfig(), 5, 4) == [1.0] * 5


def test_warm_up_rises_in_equal_steps_to_the_full_rate():
    schedule = ScheduleConfig(warmup_steps=4)

    assert factors(schedule, 6, 10) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_falls_in_equal_steps():
    schedule = ScheduleConfig("linear")

    assert factors(schedule, 5, 4) == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_cosine_decay_follows_half_a_wave():
    schedule = ScheduleConfig("cosine")
    quarter = (1 + math.cos(math.pi / 4)) / 2

    assert factors(schedule, 5, 4) == pytest.approx([1.0, quarter, 0.5, 1 - quarter, 0.0])


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_decay_starts_after_the_warm_up_and_is_halfway_in_the_middle(shape):
    schedule = ScheduleConfig(shape, warmup_steps=10, final=0.2)

    assert schedule.factor(9, 30) == 1.0
    assert schedule.factor(10, 30) == 1.0
    assert schedule.factor(20, 30) == pytest.approx(0.6)
    assert schedule.factor(30, 30) == pytest.approx(0.2)


@given(DECAYS, FINALS, st.integers(0, 50), st.integers(1, 200))
def test_decay_never_rises_and_stays_between_1_and_the_final_factor(shape, final, warmup, length):
    schedule = ScheduleConfig(shape, warmup, final)
    total = warmup + length

    decay = [schedule.factor(step, total) for step in range(warmup, total + 1)]

    # One rounding error is allowed to the last places of the cosine.
    assert all(after <= before + 1e-15 for before, after in itertools.pairwise(decay))
    assert decay[0] == pytest.approx(1.0)
    assert decay[-1] == pytest.approx(final)
    assert final - 1e-15 <= min(decay) <= max(decay) <= 1 + 1e-15


@given(DECAYS, FINALS, st.integers(0, 50), st.integers(1, 200), st.integers(0, 10**9))
def test_the_final_factor_holds_beyond_the_end(shape, final, warmup, length, beyond):
    schedule = ScheduleConfig(shape, warmup, final)

    assert schedule.factor(warmup + length + beyond, warmup + length) == final


@given(st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 100), st.integers(1, 100))
def test_warm_up_is_positive_and_never_falls_even_when_the_run_is_shorter(shape, warmup, total):
    schedule = ScheduleConfig(shape, warmup)

    rise = factors(schedule, min(warmup, total), total)

    assert rise[0] > 0
    assert rise == sorted(rise)
    assert rise[-1] == pytest.approx(min(warmup, total) / warmup)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup_steps": -1}, "warmup_steps must be >= 0, but got -1"),
        ({"final": -0.1}, "final must be between 0 and 1, but got -0.1"),
        ({"final": 1.1}, "final must be between 0 and 1, but got 1.1"),
        ({"final": math.nan}, "final must be between 0 and 1, but got nan"),
    ],
)
def test_values_out_of_range_are_refused(change, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        ScheduleConfig(**change)
