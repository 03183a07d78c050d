"""Bytes on the wire and hit rate of a plan, beside those of a run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from planned_runs import CACHED, CLICKS, PAIRS, SHARDED, make_config
from processes import run_ranks

from outsize.plan import Planner, plan_run
from outsize.plan.reads import keep_share, record_reads
from outsize.plan.rowless import RecordedConfig
from outsize.plan.segments import Segment, flush_steps, run_totals, segments_of
from outsize.plan.traffic import Sample
from outsize.training.build import build_dense_optimizer
from outsize.training.row_counts import sent_bytes
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml
from outsize.training.tasks import TASKS

BOUNDED = (*CACHED, "embeddings.wire=bfloat16", "embeddings.cache.write_staleness=3")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A cached run of two ranks: its plan and its folder."""
    folder, config = tmp_path_factory.mktemp("run"), make_config(CLICKS, *BOUNDED)
    (folder / "run.toml").write_text(to_toml(encode(config)))
    code, _, errors = run_ranks(2, "-m", "outsize", "train", folder / "run.toml",
                                "--out", folder / "out")  # fmt: skip
    assert code == 0, errors
    return plan_run(config, 2), RunFolder(folder / "out")


@pytest.fixture(scope="module")
def planned():
    """A planner of a cached run on two ranks, and its traffic."""
    planner = Planner(make_config(CLICKS, *CACHED), 2)
    return planner, planner.plan().traffic


def test_bytes_and_hit_rate_are_those_of_a_run(finished):
    plan, folder = finished
    lines = folder.metrics()
    for kind, size in sent_bytes(lines).items():
        assert plan.traffic.sent_bytes[kind] == pytest.approx(size, rel=0.001)
    counted = [line for line in lines if "hit_rate" in line]
    assert plan.traffic.reads == sum(line["reads"] for line in counted)
    assert plan.traffic.pushes == pytest.approx(sum(line["pushes"] for line in counted), rel=0.001)
    assert plan.traffic.evictions == sum(line["evictions"] for line in counted)


def test_memory_of_caches_is_that_of_a_run(finished):
    plan, folder = finished
    measured = json.loads((folder.path / "summary.json").read_text())["memory"]
    assert plan.summary()["memory"] == measured


def test_rows_of_one_rank_do_not_travel():
    assert plan_run(make_config(CLICKS, *SHARDED)).traffic is None


def test_a_part_of_the_steps_stands_for_all(planned):
    planner, whole = planned
    part = Sample(planner.config, planner.task, 2, planner.num_steps, 12)
    part = part.traffic(planner.config.embeddings)
    assert (whole.simulated_steps, part.simulated_steps) == (19, 12)
    assert sum(part.sent_bytes.values()) == pytest.approx(sum(whole.sent_bytes.values()), rel=0.1)
    assert part.hit_rate == pytest.approx(whole.hit_rate, abs=0.03)


def test_a_part_of_the_rows_stands_for_all(planned, monkeypatch):
    planner, whole = planned
    monkeypatch.setattr(Sample, "_share", lambda *_: 0.5)
    part = Sample(planner.config, planner.task, 2, planner.num_steps)
    part = part.traffic(planner.config.embeddings)
    assert part.share_of_rows == 0.5
    assert part.sent_bytes["rows"] == pytest.approx(whole.sent_bytes["rows"], rel=0.1)
    assert part.hit_rate == pytest.approx(whole.hit_rate, abs=0.03)


def test_a_narrower_wire_sends_the_same_rows_in_fewer_bytes(planned):
    planner, _ = planned
    settings = ((*SHARDED, f"embeddings.wire={wire}") for wire in ("float32", "bfloat16", "int8"))
    found = [planner.plan(make_config(CLICKS, *each)).traffic for each in settings]
    rows = [traffic.sent_bytes["rows"] for traffic in found]
    assert len({traffic.reads for traffic in found}) == 1
    assert rows[0] > rows[1] >= rows[2]
    assert [traffic.hit_rate for traffic in found] == [0.0] * 3


def test_the_sampled_steps_of_a_retrieval_model_are_trained():
    config = make_config(PAIRS, *SHARDED)
    task = TASKS["retrieval"](replace(config, embeddings=RecordedConfig(config.embeddings)))
    task.begin()
    weights = [weight.detach().clone() for weight in task.trained.parameters()]
    rows = task.embeddings.store.rows(0).clone()
    optimizer = build_dense_optimizer(config.optimizer, task.trained)
    reads = record_reads(task, 2, 2, keep_share(1.0), optimizer)
    assert [[len(of_rank) for of_rank in step] for step in reads] == [[2, 2], [2, 2]]
    assert not torch.equal(task.embeddings.store.rows(0), rows)
    assert any(
        not torch.equal(a, b) for a, b in zip(weights, task.trained.parameters(), strict=True)
    )
    read = torch.cat([ids for step in reads for of_rank in step for ids in of_rank]).unique()
    changed = (task.embeddings.store.rows(0) != rows).any(dim=1).nonzero().flatten()
    assert set(changed.tolist()) <= set(read.tolist())


def test_keeping_a_share_keeps_the_same_rows_every_time():
    ids, keep = torch.arange(20_000), keep_share(0.25)
    assert len(keep(ids)) == pytest.approx(5000, rel=0.05)
    assert torch.equal(keep(keep(ids)), keep(ids))
    assert torch.equal(keep_share(1.0)(ids), ids)


def test_a_run_flushes_at_validations_checkpoints_and_its_end():
    config = make_config(CLICKS, "train.validate_every=40", "checkpoint.every=25")
    assert flush_steps(config, 90, 47) == [25, 40, 47, 50, 75, 80, 90]


def test_the_first_segment_and_a_later_one_are_simulated():
    assert segments_of([4, 10, 14], 20) == [Segment(4, 4), Segment(6, 6), Segment(4, 4)]
    assert segments_of([50, 100], 20) == [Segment(50, 10), Segment(50, 10)]
    assert segments_of([50], 20) == [Segment(50, 20)]
    assert segments_of([5, 100, 200], 20) == [Segment(5, 5), Segment(95, 15), Segment(100, 0)]


def test_totals_continue_with_the_last_quarter_of_a_segment():
    steps = np.array([8.0, 4.0, 2.0, 2.0, 5.0, 3.0, 1.0, 1.0]).reshape(8, 1, 1)
    flushes = np.array([10.0, 20.0]).reshape(2, 1, 1)
    segments = [Segment(6, 4), Segment(5, 4), Segment(3, 0)]
    first, second, third = 16 + 2 * 2 + 10, 10 + 1 + 20, 5 + 3 + 1 + 20
    assert run_totals(segments, steps, flushes).item() == first + second + third
