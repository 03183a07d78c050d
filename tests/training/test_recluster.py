"""Clusterings come when they are due, in a run, a resumed run, and on several ranks."""

import threading
import warnings
from dataclasses import asdict

import pytest
import torch
from test_loop import (
    Recorder,
    _Writes,
    assert_same_tree,
    final_weights,
    make_config,
    make_loop,
    train_until,
)

import outsize
from outsize.checkpoint import latest_checkpoint, load_checkpoint
from outsize.clustering import kmeans
from outsize.errors import ConfigError
from outsize.tables import reclustering
from outsize.training.loop_state import LoopState
from outsize.training.run import _determinism
from outsize.training.run_folder import RunFolder
from outsize.training.tables_config import ReclusterConfig, TablesConfig

CCE = (
    "embeddings.kind=tables",
    "embeddings.method=cce",
    "embeddings.max_params=64",
    "embeddings.recluster.count=3",
    "data.num_train=1500",
    "data.largest_vocabulary=300",
)
EMPTY_AT_FIRST = """
[data]
kind = "tabular"
path = ["{}"]
label = "label"
categorical = ["user"]
multi_valued = ["tags"]
separator = "|"
vocabulary = {{min_count = 1}}
split = {{kind = "time", column = "day", validation_from = 7, test_from = 9}}
[model]
kind = "dlrm"
bottom = []
top = [4]
[embeddings]
kind = "tables"
method = "cce"
max_params = 32
dim = 4
recluster = {{count = 2, probe = {}}}
[train]
batch_size = 64
"""


@pytest.mark.parametrize(
    ("config", "total", "expected"),
    [
        (ReclusterConfig(6), 3_000_000, [300_000 * i for i in range(1, 7)]),  # the text's best of
        (ReclusterConfig(), 300_000, [75_000, 150_000]),  # ten epochs, and of one
        (ReclusterConfig(), 3_000_000, [900_000, 1_800_000]),
        (ReclusterConfig(count=6, every=300_000), 3_000_000, [300_000 * i for i in range(1, 7)]),
        (ReclusterConfig(), 150_000, [37_500, 75_000]),
        (ReclusterConfig(), 600_000, [180_000, 360_000]),
        (ReclusterConfig(count=3, rest=0.5), 100, [16, 33, 50]),
        (ReclusterConfig(count=4, rest=0.0), 100, [25, 50, 75, 100]),
        (ReclusterConfig(count=0), 100, []),
        (ReclusterConfig(count=6, rest=0.4), 4, [1, 2]),
        (ReclusterConfig(count=1, rest=1.0), 100, []),
    ],
)
def test_clusterings_are_spread_over_what_is_not_rest(config, total, expected):
    assert config.steps(total, steps_per_epoch=300_000) == expected


def test_clusterings_that_leave_no_rest_are_refused():
    with pytest.raises(ConfigError, match=r"step 300 of 400, but a rest of 0\.4 asks for 240"):
        ReclusterConfig(count=3, every=100).steps(400, 200)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": -1}, "count must be"),
        ({"every": 0}, "every must be"),
        ({"rest": 1.5}, "rest must be between 0 and 1"),
    ],
)
def test_impossible_schedules_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReclusterConfig(**settings)


def test_only_tables_that_can_recluster_have_a_schedule():
    assert TablesConfig(method="cce", max_params=9).recluster_steps(100, 50)
    late = TablesConfig(method="hash", max_params=9, recluster=ReclusterConfig(9, every=99))
    assert not late.recluster_steps(100, 50)


def test_a_run_reclusters_when_it_is_due_and_says_so():
    recorder = Recorder()
    loop = make_loop(make_config(*CCE), callbacks=recorder)
    assert loop.total_steps == 48
    loop.fit()
    lines = recorder.of("recluster")
    assert [line["step"] for line in lines] == sorted([9, 18, 28] * (len(lines) // 3))
    tables = dict(loop.task.model.embeddings.tables.items())
    compressed = {name for name, table in tables.items() if table.can_recluster}
    assert {line["table"] for line in lines} == compressed
    assert 0 < len(compressed) < len(tables)  # the cap rule keeps small ones full
    assert all(int(tables[name].num_clusterings) == 3 for name in compressed)
    assert all(0 < line["mse"] < line["variance"] for line in lines)


def test_ids_weigh_as_often_as_they_were_seen():
    config = make_config(*CCE)
    task = make_loop(config).task
    counts = task.count_occurring(step=2)
    batches = list(task.data.batches("train", 64))[:2]
    for name, counted in counts.items():
        expected = torch.cat([batch.ids[name] for batch in batches]).bincount(
            minlength=len(counted)
        )
        assert torch.equal(counted, expected)
    plain = make_loop(make_config(*CCE, "embeddings.recluster.weighted=false")).task
    assert _counts_to_recluster(task).keys() == counts.keys()
    assert _counts_to_recluster(plain) == {}


def _counts_to_recluster(task):
    """The counts that tables are reclustered with after two steps."""
    taken = {}
    task.embeddings.recluster = lambda optimizer, counts, tolerance: taken.update(counts) or {}
    task.recluster(2, torch.optim.SGD(task.model.parameters()))
    return taken


@pytest.mark.parametrize("stop_at", [8, 9, 10, 30])
def test_a_run_stopped_around_a_clustering_resumes_bit_identical(tmp_path, stop_at):
    config = make_config(*CCE)
    outsize.train(config, tmp_path / "whole", quiet=True)
    train_until(stop_at, config, tmp_path / "cut")
    outsize.train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same_tree(final_weights(tmp_path / "cut"), final_weights(tmp_path / "whole"))
    steps = [
        [(line["step"], line.get("table"), line.get("mse")) for line in RunFolder(f).metrics()]
        for f in (tmp_path / "whole", tmp_path / "cut")
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("table", [0, 1])
def test_a_run_stopped_inside_a_clustering_resumes_bit_identical(tmp_path, monkeypatch, table):
    """The stop comes in the k-means of a table, the first or one with another before it."""
    config = make_config(*CCE, "train.deterministic=true", "checkpoint.every=3")
    outsize.train(config, tmp_path / "whole", quiet=True)
    asked, fitted = threading.Event(), []

    def kmeans_that_is_interrupted(*points, **options):
        fitted.append(points)
        if len(fitted) == 1 + table:
            asked.set()
        return kmeans(*points, **options)

    folder = RunFolder(tmp_path / "cut")
    folder.begin(config)
    monkeypatch.setattr(reclustering, "kmeans", kmeans_that_is_interrupted)
    with torch.random.fork_rng(), _determinism(True):
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, _Writes(folder), asked.is_set)
        with pytest.raises(KeyboardInterrupt):
            loop.fit()
    monkeypatch.undo()
    assert len(fitted) == 1 + table
    saved = load_checkpoint(latest_checkpoint(folder.checkpoints))
    assert saved["loop"]["step"] == 9
    assert saved["loop"]["unfinished"] == "recluster"
    assert not any(value.any() for key, value in saved["model"].items() if "num_clust" in key)
    outsize.train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same_tree(final_weights(tmp_path / "cut"), final_weights(tmp_path / "whole"))
    steps = [
        [(line["step"], line.get("table"), line.get("mse")) for line in RunFolder(f).metrics()]
        for f in (tmp_path / "whole", tmp_path / "cut")
    ]
    assert steps[0] == steps[1]


def test_a_state_of_before_a_stop_could_leave_work_unfinished_is_read():
    old = {key: value for key, value in asdict(LoopState(step=7)).items() if key != "unfinished"}
    assert LoopState.from_dict(old) == LoopState(step=7, unfinished="")


def test_the_report_shows_clusterings(tmp_path):
    outsize.train(make_config(*CCE), tmp_path / "run", quiet=True)
    assert "Reclusterings" in (tmp_path / "run" / "report.html").read_text()


def test_a_collapse_is_said_in_a_run():
    config = make_config(
        "embeddings.kind=tables",
        "embeddings.method=circular",
        "embeddings.max_params=32",
        "embeddings.recluster.count=6",
        "data.largest_vocabulary=3000",
        "data.num_train=3000",
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_loop(config).fit()
    assert any("collapse" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("probe", ["false", "{rate=0.1, blocks=2}"])
def test_a_feature_that_is_empty_so_far_is_clustered_as_if_counts_were_unknown(tmp_path, probe):
    tags = ["" if row < 500 else f"t{row % 90}" for row in range(600)]
    rows = [f"{row % 3 % 2},{row // 60},u{row % 70},{tag}" for row, tag in enumerate(tags)]
    (tmp_path / "log.csv").write_text("\n".join(["label,day,user,tags", *rows]))
    (tmp_path / "run.toml").write_text(EMPTY_AT_FIRST.format(tmp_path / "log.csv", probe))
    config = outsize.training.load_config(tmp_path / "run.toml")
    result = outsize.train(config, tmp_path / "run", quiet=True)
    assert int(result.model.embeddings.tables["tags"].num_clusterings) == 2
