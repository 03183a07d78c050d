"""From simulated ranks to many."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import CLICKS, make_config

from outsize.plan.many_ranks import (
    busiest_owner,
    extrapolate,
    hit_rate_of,
    lasting_hit_rate,
    rule_error,
)
from outsize.plan.simulation import simulate
from outsize.plan.traffic import Traffic

READS, STEPS = 1000, 10


def traffic(num_ranks, rate, *, rows_s=0.0):
    """Traffic that follows the rules: 8 bytes per row asked for, 64 per row sent."""
    total = num_ranks * STEPS
    remote = READS * (1 - 1 / num_ranks)
    sent = {"ids": 8 * remote, "clocks": 0, "rows": 64 * remote * (1 - rate), "gradients": 0}
    return Traffic(
        sent_bytes={kind: round(total * size) for kind, size in sent.items()},
        reads=total * READS, local=round(total * READS / num_ranks),
        hits=round(total * remote * rate), pushes=0, evictions=0, num_ranks=num_ranks,
        num_steps=STEPS, simulated_steps=STEPS, share_of_rows=1.0, cache_bytes=[], rows_s=rows_s,
        cache_state_bytes=0, simulated_ranks=[num_ranks],
    )  # fmt: skip


@given(bound=st.integers(0, 200), cold=st.floats(0.0, 0.9), num_ranks=st.integers(33, 5000))
def test_a_line_through_simulated_sizes_is_the_hit_rate_of_the_rule(bound, cold, num_ranks):
    sizes = np.array([8.0, 16.0, 32.0])
    rates = (1 - cold) * (bound + 1) / (bound + sizes)
    expected = (1 - cold) * (bound + 1) / (bound + num_ranks)
    assert hit_rate_of(sizes, rates, num_ranks) == pytest.approx(expected, rel=1e-6)


def test_bytes_and_rows_follow_from_the_hit_rate():
    rate = lambda num: 0.8 * 11 / (10 + num)  # noqa: E731
    found = extrapolate([traffic(num, rate(num)) for num in (8, 16, 32)], 1024)
    exact = traffic(1024, rate(1024))
    assert found.num_ranks == 1024
    assert found.simulated_ranks == [8, 16, 32]
    assert found.hit_rate == pytest.approx(exact.hit_rate, rel=0.01)
    for kind, size in exact.sent_bytes.items():
        assert found.sent_bytes[kind] == pytest.approx(size, rel=0.01)
    assert found.local == pytest.approx(exact.local, rel=0.01)


def test_in_a_long_run_others_make_copies_stale():
    assert lasting_hit_rate(10, 0, 2) == pytest.approx(11 / 12)
    assert lasting_hit_rate(10, 10, 1024) == pytest.approx(11 / 1034)
    assert lasting_hit_rate(0, 0, 32) == pytest.approx(1 / 32)
    assert lasting_hit_rate(float("inf"), 10, 1024) == 1.0
    young = [traffic(num, 0.6) for num in (8, 16, 32)]
    assert extrapolate(young, 1024).hit_rate == pytest.approx(0.6, abs=0.01)
    most = lasting_hit_rate(10, 10, 1024)
    assert extrapolate(young, 1024, most).hit_rate == pytest.approx(most, abs=1e-3)


def test_without_a_cache_nothing_hits_and_bytes_stay():
    found = extrapolate([traffic(num, 0.0) for num in (8, 16, 32)], 1024)
    assert found.hit_rate == 0.0
    assert found.bytes_per_step["rows"] == pytest.approx(64 * READS * (1 - 1 / 1024), rel=1e-3)


def test_the_time_of_rows_grows_with_the_messages_and_never_falls():
    rising = [traffic(num, 0.0, rows_s=0.01 + 0.001 * num) for num in (8, 16, 32)]
    assert extrapolate(rising, 132).rows_s == pytest.approx(0.01 + 0.132)
    falling = [replace(each, rows_s=1 / each.num_ranks) for each in rising]
    assert extrapolate(falling, 132).rows_s == 1 / 32


def test_the_rules_are_checked_where_they_can_be():
    exact = [traffic(num, 11 / (10 + num)) for num in (8, 16, 32)]
    error = rule_error(exact)
    assert (error.num_ranks, error.sent, error.hit_rate) == (
        32, pytest.approx(0, abs=1e-3), pytest.approx(0, abs=1e-3))  # fmt: skip
    colder = [*exact[:2], traffic(32, 0.1)]
    assert rule_error(colder).hit_rate == pytest.approx(11 / 42 - 0.1, abs=1e-3)


def test_the_store_itself_follows_the_rule_where_all_ranks_read_alike():
    config = make_config(CLICKS, "embeddings.store=sharded", "embeddings.cache.share=1.0",
                         "embeddings.cache.read_staleness=4",
                         "embeddings.cache.write_staleness=0").embeddings  # fmt: skip
    draws, num_rows, rates = torch.Generator().manual_seed(1), 600, []
    for size in (2, 3, 4):
        reads = [
            [[torch.randperm(num_rows, generator=draws)[:60].sort().values] for _ in range(size)]
            for _ in range(50)
        ]
        steps = simulate(config, reads, num_rows, [50], num_rows).steps[20:].sum(axis=(0, 1))
        counts = dict(zip(("reads", "local", "hits"), steps[4:7], strict=True))
        rates.append(counts["hits"] / (counts["reads"] - counts["local"]))
    assert rates[0] > rates[1] > rates[2]
    predicted = hit_rate_of(np.array([2.0, 3.0]), np.array(rates[:2]), 4)
    assert predicted == pytest.approx(rates[2], abs=0.03)


def test_the_owner_of_popular_rows_is_the_busiest():
    popular = [[torch.tensor([0, 5])], [torch.tensor([0, 7])], [torch.tensor([0, 6])]]
    assert busiest_owner([popular], 4) == pytest.approx(3 / 1.5)
    assert busiest_owner([popular], 1) == 1.0
    assert busiest_owner([[[torch.empty(0, dtype=torch.int64)]]], 4) == 1.0
