"""The time of a step by part."""

import pytest
from planned_runs import CACHED, CLICKS, make_config

from outsize.errors import ConfigError
from outsize.plan import Planner
from outsize.plan.step_time import Link, StepTime, exchange_seconds, read_link


def test_a_link_carries_bits():
    assert read_link("25Gbit") == Link(25e9)
    assert read_link("100 Mbit/s", 50) == Link(1e8, 5e-5)
    assert Link(1e9).seconds(125_000_000) == 1.0


@pytest.mark.parametrize("text", ["25", "25GB", "0Gbit", "fast", ""])
def test_what_is_no_link_is_refused(text):
    with pytest.raises(ConfigError, match="is no link: write what it carries as 25Gbit"):
        read_link(text)


def test_dense_gradients_go_round_a_ring_and_rows_in_four_rounds():
    link = Link(8e6, 0.001)
    assert exchange_seconds(link, 1, 1e9, 1000, exchanges_rows=True) == 0.0
    ring = exchange_seconds(link, 4, 0.0, 1_000_000, exchanges_rows=False)
    assert ring == pytest.approx(1.5 + 6 * 0.001)
    rows = exchange_seconds(link, 4, 500_000.0, 0, exchanges_rows=True)
    assert rows == pytest.approx(0.5 + 4 * 0.001)


def test_the_longest_part_is_named_with_what_shortens_it():
    time = StepTime(0.1, 0.2, 0.7, steps_per_epoch=3600, num_ranks=8)
    assert time.bottleneck == "exchange"
    assert "wire" in time.advice
    assert time.hours_per_epoch == pytest.approx(1.0)
    assert time.summary()["machine_hours_per_epoch"] == pytest.approx(8.0)


def test_of_very_many_ranks_a_few_are_simulated(monkeypatch):
    monkeypatch.setattr("outsize.plan.planning.MOST_RANKS", 3)
    config = make_config(CLICKS, *CACHED, "data.num_train=20_000", "train.steps=3")
    plan = Planner(config, 500, link=read_link("1Gbit")).plan()
    assert plan.traffic.num_ranks == 3
    assert len(plan.memory) == 500
    assert plan.total_memory.bytes_of("parameters") >= 4 * 4 * sum(s.num_rows for s in plan.tables)
    assert plan.time.total_s > 0
    assert any("those of 3 ranks" in note for note in plan.notes)


def test_overlap_changes_no_bytes_and_makes_the_time_an_upper_bound():
    plans = [
        Planner(
            make_config(
                CLICKS, *CACHED, "data.num_train=20_000", "train.steps=3",
                f"embeddings.overlap={overlap}",
            ),
            2,
            link=read_link("1Gbit"),
        ).plan()
        for overlap in ("false", "true")
    ]  # fmt: skip
    assert plans[0].traffic.sent_bytes == plans[1].traffic.sent_bytes
    assert any("nothing overlaps" in note for note in plans[0].notes)
    assert any("an upper bound" in note for note in plans[1].notes)
