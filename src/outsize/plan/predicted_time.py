"""The time of a step on the machine of a run, from what was measured on this one."""

from __future__ import annotations

from dataclasses import replace

from outsize.plan.machine import Machine, Pace
from outsize.plan.replicas import RowCost
from outsize.plan.step_time import Exchange, StepTime, moves_of


def predicted_time(
    machine: Machine,
    pace: Pace,
    dense_s: float,
    rows: RowCost,
    dense_bytes: int,
    num_ranks: int,
    steps_per_epoch: int,
) -> StepTime:
    """The time of a step by part.

    Args:
        machine: The machines of the ranks.
        pace: How long work takes there.
        dense_s: Seconds of the dense step, here.
        rows: What rows cost, here.
        dense_bytes: Bytes of gradients that ranks average.
        num_ranks: Number of ranks.
        steps_per_epoch: Steps of an epoch.
    """
    link = machine.full_link(num_ranks)
    exchange = Exchange(num_ranks, rows.row_bytes, rows.row_rounds, dense_bytes)
    dense_s, rows_s = dense_s * pace.dense, rows.rows_s * pace.rows
    waiting_s, busy = 0.0, machine.busy(num_ranks)
    if busy is not None:
        dense_s, rows_s = dense_s * busy.dense, rows_s * busy.rows
        waiting_s = (dense_s + rows_s) * busy.wait
    exchange_s = exchange.seconds(link) + waiting_s
    time = StepTime(dense_s, rows_s, exchange_s, steps_per_epoch, num_ranks)
    return replace(time, moves=moves_of(time, exchange, link))


def time_notes(machine: Machine, num_ranks: int, *, overlaps: bool) -> list[str]:
    """What a predicted time assumes.

    Args:
        machine: The machines of the ranks.
        num_ranks: Number of ranks.
        overlaps: Whether rows are exchanged while dense weights compute.
    """
    added = (
        "their sum does not count what embeddings.overlap hides: rows are exchanged while dense "
        "weights compute"
        if overlaps
        else "nothing overlaps"
    )
    if machine.calibration is None:
        return [
            f"times are those of this machine as busy as it is, and {added}; outsize bench "
            "calibrate measures what messages cost besides"
        ]
    notes = [f"times are those of {machine.calibration.words}; {added}"]
    busy = machine.busy(num_ranks)
    if busy is None:
        return notes
    notes.append(
        f"one machine has all {num_ranks} ranks: dense takes {busy.dense:.2f} times as long as for "
        f"a rank alone, rows {busy.rows:.2f} times, and waiting for slower ranks "
        f"{busy.wait:.0%} of both, which is part of exchange; --link plans a machine per rank"
    )
    most = machine.calibration.together[-1].num_ranks
    if num_ranks > most:
        notes.append(
            f"at most {most} ranks at once were calibrated: times are as if each had a core, and "
            "did not slow the others down further"
        )
    return notes
