"""What a plan counts is what a run has at its end."""

import json

import pytest
import torch
from planned_runs import CACHED, CLICKS, NODES, PAIRS, SHARDED, make_config
from processes import run_ranks

from outsize.initialization import initial_rows
from outsize.plan import plan_run
from outsize.plan.dry_step import evaluated_batch
from outsize.plan.rowless import VALUES_AT_ONCE, RowlessStore
from outsize.plan.text import plan_lines
from outsize.spec import TableSpec
from outsize.training import train
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import encode, to_toml

TABLES = [
    ("embeddings.kind=tables",),
    ("embeddings.kind=tables", "embeddings.method=cce", "embeddings.max_params=400"),
]
STORES = [("embeddings.optimizer.kind=adam",), CACHED]
NEGATIVE_CACHES = [
    ("negatives.feed=corpus", "negatives.precision=bfloat16"),
    ("negatives.feed=stream", "negatives.num_items=21", "negatives.num_new=5",
     "negatives.precision=int8"),
    ("negatives.feed=positives", "negatives.num_items=17", "negatives.precision=float32",
     "negatives.eviction=lru"),
]  # fmt: skip


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


@pytest.mark.parametrize("negatives", NEGATIVE_CACHES)
@pytest.mark.parametrize("rows", [(), CACHED])
def test_a_negative_cache_of_one_rank_is_counted_as_its_run_counts_it(negatives, rows):
    config = make_config(PAIRS, *negatives, *rows)
    assert plan_run(config).total_memory == train(config, quiet=True).memory


@pytest.mark.parametrize("negatives", NEGATIVE_CACHES)
@pytest.mark.parametrize("rows", [(), CACHED])
def test_a_negative_cache_of_two_ranks_is_counted_as_its_run_counts_it(negatives, rows, tmp_path):
    config = make_config(PAIRS, *negatives, *rows)
    (tmp_path / "run.toml").write_text(to_toml(encode(config)))
    code, _, errors = run_ranks(
        2, "-m", "outsize", "train", tmp_path / "run.toml", "--out", tmp_path / "out"
    )
    assert code == 0, errors
    measured = json.loads((tmp_path / "out" / "summary.json").read_text())["memory"]
    assert plan_run(config, 2).summary()["memory"] == measured


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


def test_rows_of_a_probe_are_in_the_peak(tmp_path):
    settings = (*TABLES[1], "embeddings.recluster.count=1", "train.steps=2")
    plain = plan_run(make_config(CLICKS, *settings))
    config = make_config(CLICKS, *settings, "embeddings.recluster.probe={rate=0.1, blocks=2}")
    probed = plan_run(config)
    train(config, tmp_path / "run", quiet=True)
    lines = RunFolder(tmp_path / "run").metrics()
    (extra,) = [line["extra_bytes"] for line in lines if line["split"] == "probe"]
    assert plain.peak.probes == 0
    assert 0 < extra <= probed.peak.probes
    assert "rows of a probe" in "\n".join(plan_lines(probed))
    assert "rows of a probe" not in "\n".join(plan_lines(plain))


def test_nodes_and_their_steps_are_planned():
    plan = plan_run(make_config(NODES), 2, sample_steps=2)
    assert {spec.name: spec.num_rows for spec in plan.tables} == {"node": 400}
    assert plan.traffic.reads > 0


def test_rows_that_are_not_stored_have_the_initial_values_however_many_are_read():
    specs = [TableSpec("few", 10, 8), TableSpec("many", 3 * VALUES_AT_ONCE // 8, 8)]
    store = RowlessStore(specs, seed=4)
    ids = torch.arange(specs[1].num_rows)
    rows = store.read(ids, table="many")
    assert torch.equal(rows, initial_rows(specs[1], ids, 4))


def test_an_evaluated_batch_is_the_part_of_one_rank():
    config = make_config(CLICKS, "train.eval_batch_size=150")
    data = config.data.build()  # 200 rows to validate, 100 to test
    sizes = [evaluated_batch(config, data, ranks).num_examples for ranks in (1, 2, 4)]
    assert sizes == [150, 100, 50]
