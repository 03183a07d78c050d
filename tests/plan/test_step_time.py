"""The time of a step by part."""

from dataclasses import replace

import pytest
from planned_runs import CACHED, CALIBRATION, CLICKS, make_config

from outsize.errors import ConfigError
from outsize.plan import Planner
from outsize.plan.machine import Machine, Pace
from outsize.plan.predicted_time import predicted_time, time_notes
from outsize.plan.replicas import RowCost
from outsize.plan.step_time import (
    Exchange,
    Link,
    StepTime,
    busiest_bytes,
    calibrated_link,
    moves_of,
    read_link,
)
from outsize.plan.text import plan_lines
from outsize.plan.traffic import Traffic


def test_a_link_carries_bits():
    assert read_link("25Gbit") == Link(25e9)
    assert read_link("100 Mbit/s", 50) == Link(1e8, 5e-5)
    assert Link(1e9).seconds(125_000_000) == 1.0


@pytest.mark.parametrize("text", ["25", "25GB", "0Gbit", "fast", ""])
def test_what_is_no_link_is_refused(text):
    with pytest.raises(ConfigError, match="is not a link: write what it carries as 25Gbit"):
        read_link(text)


def test_two_ranks_average_gradients_and_agree_on_a_flag():
    link = Link(8e6, 0.001)
    assert Exchange(1, 1e9, 4, 1000).seconds(link) == 0.0
    dense = Exchange(2, 0.0, 0, 1_000_000).seconds(link)
    assert dense == pytest.approx(1.0 + 2 * 0.001 + 2 * 0.001)
    rows = Exchange(2, 500_000.0, 4, 0).seconds(link)
    assert rows == pytest.approx(0.5 + 4 * 0.001 + 2 * 0.001)


def test_every_further_rank_adds_a_message_to_each_round_and_a_hop_to_the_ring():
    link = Link(8e6, 0.001, peer_s=0.0001)
    assert Exchange(2, 0.0, 3, 0).seconds(link) == pytest.approx((3 + 2) * 0.001)
    eight = Exchange(8, 0.0, 3, 0).seconds(link)
    assert eight == pytest.approx(3 * (0.001 + 6 * 0.0001) + 6 * 0.001)
    ring = Exchange(8, 0.0, 3, 8).seconds(link) - eight
    assert ring == pytest.approx(14 / 1e6 + (0.001 + 6 * 0.0001) + 7 * 0.001)


def test_ranks_add_up_the_gradients_they_average():
    slow = Link(8e6, mean_byte_s=3e-6)
    assert Exchange(2, 0.0, 0, 1000).seconds(slow) == pytest.approx(1000 * 3e-6)
    assert Exchange(4, 0.0, 0, 1000).seconds(slow) == pytest.approx(1500 * 3e-6)
    assert Exchange(4, 0.0, 0, 1000).seconds(Link(8e6, mean_byte_s=1e-9)) == pytest.approx(1.5e-3)


def test_averaging_takes_what_software_was_measured_to_take_besides_the_latency_of_a_link():
    measured = replace(CALIBRATION, together=tuple(
        replace(each, mean_s=0.001 * each.num_ranks) for each in CALIBRATION.together
    ))  # fmt: skip
    here, there = (calibrated_link(link, measured, 4) for link in (None, Link(8e6, 5e-5)))
    assert here.averaging_s(4, 0) == there.averaging_s(4, 0) == 0.0
    assert here.averaging_s(4, 1000) == pytest.approx(0.004 + 1500 * 2e-9)
    assert there.averaging_s(4, 1000) == pytest.approx(0.004 + 4 * 5e-5 + 1.5e-3)
    exchange = Exchange(4, 0.0, 0, 1000)
    time = StepTime(0.1, 0.2, exchange.seconds(there), steps_per_epoch=1, num_ranks=4)
    saved = time.total_s - moves_of(time, exchange, there)["rounds of half the latency"]
    assert saved == pytest.approx((4 * 5e-5 + 4 * there.latency_s) / 2)


def test_a_calibration_adds_latency_and_the_slower_of_link_and_software_sets_the_pace():
    loop = calibrated_link(None, CALIBRATION)
    assert loop.seconds(1e6) == pytest.approx(1e-3)
    assert (loop.latency_s, loop.peer_s) == (2e-4, 0.0)
    slow = calibrated_link(Link(8e6, 5e-5), CALIBRATION, 4)
    assert (slow.bits_per_s, slow.latency_s) == (8e6, 2.5e-4)
    assert slow.round_s(4) == pytest.approx(3e-4 + 5e-5)
    assert calibrated_link(Link(1e15), CALIBRATION, 4).bits_per_s == loop.bits_per_s


def test_ranks_of_one_machine_share_what_carries_their_bytes():
    four = calibrated_link(None, CALIBRATION, 4)
    assert four.seconds(1e6) == pytest.approx(2e-3)
    assert four.round_s(4) == pytest.approx(3e-4)
    assert calibrated_link(None, CALIBRATION, 6).round_s(6) == pytest.approx(3.2e-4)


def test_ranks_of_one_machine_slow_each_other_down_and_ranks_with_a_link_do_not():
    rows, pace = RowCost(0.002, 0.0, 0.0), Pace(Machine())
    alone, together = (
        predicted_time(machine, pace, 0.01, rows, 0, 4, 1)
        for machine in (Machine(Link(1e9), CALIBRATION), Machine(calibration=CALIBRATION))
    )
    assert (alone.dense_s, alone.rows_s) == (0.01, 0.002)
    assert (together.dense_s, together.rows_s) == pytest.approx((0.015, 0.004))
    messages_s = Exchange(4, 0.0, 0.0, 0).seconds(calibrated_link(None, CALIBRATION, 4))
    assert together.exchange_s - messages_s == pytest.approx(0.1 * 0.019)
    assert min(together.moves.values()) >= 0.1 * 0.019


def test_notes_say_what_ranks_of_one_machine_were_assumed_to_do():
    here = Machine(calibration=CALIBRATION)
    assert "dense takes 1.50 times as long" in time_notes(here, 4, overlaps=False)[1]
    assert "at most 4 ranks at once were calibrated" in time_notes(here, 9, overlaps=False)[2]
    assert len(time_notes(here, 1, overlaps=False)) == 1
    assert len(time_notes(Machine(Link(1e9), CALIBRATION), 9, overlaps=False)) == 1


def test_the_busiest_owner_sets_the_bytes_of_a_round():
    sent = {"ids": 100, "clocks": 0, "rows": 800, "gradients": 100}
    traffic = Traffic(sent, 10, 5, 0, 0, 0, 2, 5, 5, 1.0, [], 0, 0.0, [2], busiest=2.0)
    assert busiest_bytes(traffic) == 80 * 2 + 20
    assert busiest_bytes(replace(traffic, busiest=1.0)) == 100


def test_moves_name_what_shortens_a_step_most():
    exchange, link = Exchange(2, 1e6, 4, 0), Link(8e6)
    time = StepTime(0.1, 0.2, exchange.seconds(link), steps_per_epoch=1, num_ranks=2)
    moves = moves_of(time, exchange, link)
    assert list(moves.values()) == sorted(moves.values())
    assert moves["a link of twice the bits per second"] == pytest.approx(0.3 + 0.5)
    assert moves["dense weights on a device twice as fast"] == pytest.approx(1.25)
    assert not any("link" in words for words in moves_of(time, Exchange(1, 0, 0, 0), link))


def test_the_longest_part_is_named_with_what_shortens_it():
    time = StepTime(0.1, 0.2, 0.7, steps_per_epoch=3600, num_ranks=8)
    assert time.bottleneck == "exchange"
    assert "wire" in time.advice
    assert time.hours_per_epoch == pytest.approx(1.0)
    assert time.summary()["machine_hours_per_epoch"] == pytest.approx(8.0)


def test_of_very_many_ranks_a_few_are_simulated_and_the_rest_extrapolated(monkeypatch):
    monkeypatch.setattr("outsize.plan.planning.MOST_RANKS", 4)
    monkeypatch.setattr("outsize.plan.row_sampling.MOST_RANKS", 4)
    config = make_config(CLICKS, *CACHED, "data.num_train=20_000", "train.steps=6")
    machine = Machine(read_link("1Gbit"), CALIBRATION)
    plan = Planner(config, 500, machine=machine, num_examples=10_000_000).plan()
    assert (plan.traffic.num_ranks, plan.traffic.simulated_ranks) == (500, [2, 4])
    assert plan.steps_per_epoch == 10_000_000 // (500 * 32)
    assert len(plan.memory) == 500
    assert plan.total_memory.bytes_of("parameters") >= 4 * 4 * sum(s.num_rows for s in plan.tables)
    assert plan.time.total_s > 0
    assert plan.traffic.local / plan.traffic.reads == pytest.approx(1 / 500, rel=0.01)
    assert any(
        note.startswith("simulated: 2 and 4 ranks. Extrapolated to 500") for note in plan.notes
    )
    assert any(note.startswith("unknown:") for note in plan.notes)
    assert any("extrapolated" in line for line in plan_lines(plan))


def test_rows_that_do_not_travel_take_time_too():
    plan = Planner(make_config(CLICKS, "train.steps=3"), machine=Machine(calibration=CALIBRATION))
    time = plan.plan().time
    assert time.rows_s > 0
    assert time.exchange_s == 0


def test_a_plan_scales_its_times_by_the_reference_of_the_calibration():
    config = make_config(CLICKS, "train.steps=3")
    slower = replace(CALIBRATION, dense_s=1000.0 * CALIBRATION.dense_s)
    fast, slow = (
        Planner(config, machine=Machine(calibration=each)).plan().time
        for each in (CALIBRATION, slower)
    )
    assert slow.dense_s > 50 * fast.dense_s


def test_overlap_changes_no_bytes_and_what_it_hides_is_not_counted():
    plans = [
        Planner(
            make_config(
                CLICKS, *CACHED, "data.num_train=20_000", "train.steps=3",
                f"embeddings.overlap={overlap}",
            ),
            2,
            machine=Machine(link=read_link("1Gbit")),
        ).plan()
        for overlap in ("false", "true")
    ]  # fmt: skip
    assert plans[0].traffic.sent_bytes == plans[1].traffic.sent_bytes
    assert any("nothing overlaps" in note for note in plans[0].notes)
    assert any("does not count what embeddings.overlap hides" in note for note in plans[1].notes)
    assert not any("upper bound" in note for note in plans[1].notes)
