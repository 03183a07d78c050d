"""What a plan counts is what a run has at its end."""

import pytest
from planned_runs import CACHED, CLICKS, NODES, PAIRS, SHARDED, make_config

from outsize.plan import plan_run
from outsize.training import train

TABLES = [
    ("embeddings.kind=tables",),
    ("embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=400"),
]
STORES = [("embeddings.optimizer.kind=adam",), CACHED]


@pytest.mark.parametrize("settings", [*TABLES, *STORES])
def test_embeddings_are_counted_as_a_run_counts_them(settings):
    config = make_config(CLICKS, "train.steps=2", *settings)
    plan, found = plan_run(config), train(config, quiet=True)
    assert plan.total_memory == found.memory
    assert plan.num_steps == found.steps


def test_a_negative_cache_is_counted_too():
    config = make_config(PAIRS)
    plan = plan_run(config)
    assert plan.total_memory == train(config, quiet=True).memory
    assert plan.negative_cache is not None


def test_ranks_have_a_part_each_of_a_negative_cache_and_of_rows_that_they_share():
    alone = plan_run(make_config(PAIRS, *SHARDED))
    several = plan_run(make_config(PAIRS, *SHARDED), 3, sample_steps=2)
    assert several.total_memory.num_parameters == alone.total_memory.num_parameters
    assert several.total_memory.bytes_of("parameters") == alone.total_memory.bytes_of("parameters")
    assert several.memory[0].total_bytes < alone.memory[0].total_bytes / 2
    assert several.negative_cache.total_bytes < alone.negative_cache.total_bytes


def test_rows_that_every_rank_has_count_once():
    config = make_config(CLICKS)
    assert plan_run(config, 4).total_memory == plan_run(config).total_memory


def test_a_table_that_fits_nowhere_is_planned():
    config = make_config(
        CLICKS, "data.largest_vocabulary=2_000_000_000", "data.num_train=200",
        "data.num_clusters=4", "embeddings.dim=64", *CACHED[:1],
    )  # fmt: skip
    plan = plan_run(config, 2, sample_steps=2)
    assert plan.fits is False
    assert plan.memory[0].total_bytes > 250e9


def test_the_peak_holds_what_is_counted():
    plan = plan_run(make_config(CLICKS))
    assert plan.peak.counted == plan.memory[0].total_bytes
    assert plan.peak.total > plan.peak.counted + plan.peak.process - 1


def test_nodes_and_their_steps_are_planned():
    plan = plan_run(make_config(NODES), 2, sample_steps=2)
    assert {spec.name: spec.num_rows for spec in plan.tables} == {"node": 400}
    assert plan.traffic.reads > 0
