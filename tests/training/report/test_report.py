import json
import math
import shutil
import xml.etree.ElementTree as ET

import pytest
from html_pages import Page

import outsize
from outsize.checkpoint import list_checkpoints
from outsize.errors import ConfigError
from outsize.reporting.quantities import format_bytes
from outsize.spec import MemoryUse
from outsize.training.build import build_dense_optimizer
from outsize.training.config import RunConfig
from outsize.training.gradients import gradients_of
from outsize.training.loop import Loop
from outsize.training.report import (
    RunHistory,
    curve_svg,
    memory_svg,
    run_page,
    write_report,
)
from outsize.training.run_folder import RunFolder
from outsize.training.run_log import read_log_record
from outsize.training.strict_toml import decode, override
from outsize.training.tasks import ClickTask

SMALL = {
    "data": {"num_train": 600, "num_validation": 200, "num_test": 200, "largest_vocabulary": 100},
    "train": {"batch_size": 100, "validate_every": 2, "log_every": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a <run>"
    outsize.train(decode(RunConfig, SMALL, "test"), out, quiet=True)
    return RunFolder(out)


@pytest.fixture(scope="module")
def page(run):
    return Page(run.report_file.read_text())


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "copy")
    return RunFolder(tmp_path / "copy")


def test_the_report_is_one_file_with_nothing_to_download(page):
    assert not [link for link in page.links if not link.startswith("#")]
    assert page.opened.count("svg") == 6  # and the memory as bars


def test_the_report_shows_how_training_went(run, page):
    titles = page.words
    for title in ("Log loss", "AUC", "Calibration", "Learning rate", "Examples per second",
                  "Gradient norm", "Embedding memory by table"):  # fmt: skip
        assert title in titles
    drawn = run.report_file.read_text()
    for label in ("seconds of training", "best step 6", "end of an epoch", "calibrated",
                  "embeddings", "parameters"):  # fmt: skip
        assert f">{label}<" in drawn


def report_of(tree, folder):
    outsize.train(decode(RunConfig, tree, "test"), folder, quiet=True)
    return Page(RunFolder(folder).report_file.read_text())


TOWERS = {
    "data": {"kind": "synthetic-interactions", "num_queries": 60, "num_items": 40,
             "items_per_query": 8},
    "model": {"kind": "two-tower"},
}  # fmt: skip
GRAPH = {
    "data": {"kind": "synthetic-graph", "num_nodes": 80, "num_classes": 4, "mean_degree": 6},
    "model": {"kind": "graphsage", "hidden": 4},
    "graph": {"fan_out": [2, 2]},
}
LINKS = {
    **GRAPH,
    "data": {
        "kind": "synthetic-graph",
        "num_nodes": 80,
        "num_classes": 4,
        "mean_degree": 6,
        "links": {"validation": 0.1, "test": 0.1},
    },
    "graph": {"predict": "links", "fan_out": [2, 2]},
    "negatives": {"kind": "in-batch"},
}


@pytest.mark.parametrize(
    ("tree", "loss", "note"),
    [
        (TOWERS, "softmax loss", True),
        (LINKS, "softmax loss", True),
        (GRAPH, "cross-entropy", False),
    ],
)
def test_the_loss_is_called_by_what_it_is(tree, loss, note, tmp_path):
    page = report_of(
        {**tree, "embeddings": {"dim": 4}, "train": {"epochs": 1, "log_every": 1}}, tmp_path / "run"
    )
    assert f"test {loss}" in page.words  # in the headline
    assert loss in page.words  # on the axis
    assert loss[0].upper() + loss[1:] in page.words  # over the plot
    assert not [words for words in page.words if "log loss" in words.lower()]
    assert ("against all items" in " ".join(page.words)) == note


def test_a_run_too_short_for_a_training_line_says_so(tmp_path):
    page = report_of(override(SMALL, ["train.log_every=1000"]), tmp_path / "run")
    assert "one is written every 1,000 steps" in " ".join(page.words)


def test_a_report_can_be_made_again(copy):
    before = copy.report_file.read_text()
    copy.report_file.unlink()
    write_report(copy)
    assert copy.report_file.read_text() == before.replace("a &lt;run&gt;", "copy")


def test_a_run_of_an_older_version_has_a_report(copy):
    new = ("train_s", "epochs", "gradient_norm", "embedding_learning_rate")
    lines = [
        {k: v for k, v in x.items() if k not in new and not k.startswith("calibration_")}
        for x in copy.metrics()
    ]
    copy.metrics_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    copy.summary_file.unlink()
    page = Page(run_page(copy))
    assert page.opened.count("svg") == 4  # loss, AUC, learning rate, examples per second
    assert "This run has not ended" in " ".join(page.words)
    old = {"steps": 6, "elapsed_s": 3.0, "stopped": "finished",
           "memory": {"num_parameters": 4, "total_bytes": 16,
                      "bytes_by_device": {"cpu": {"parameters": 16}}}}  # fmt: skip
    copy.write_summary(old)
    page = Page(run_page(copy))
    assert page.opened.count("svg") == 4
    assert "all" in page.words  # the bar of all tables
    assert "not recorded" in page.words
    assert "This run has not ended" not in " ".join(page.words)


def test_a_run_that_has_just_begun_has_a_report(copy):
    copy.metrics_file.write_text(json.dumps(copy.metrics()[0]) + "\n")
    copy.summary_file.unlink()
    drawn = run_page(copy)
    assert "This run has not ended" in drawn
    assert "test log loss" not in drawn


def test_without_a_run_or_metrics_there_is_no_report(copy, tmp_path):
    copy.log.clear()
    with pytest.raises(ConfigError, match="has no metrics yet"):
        run_page(copy)
    with pytest.raises(ConfigError, match="holds no run"):
        run_page(RunFolder(tmp_path))


def test_lines_hold_the_time_of_training_and_the_norm_of_gradients(run):
    lines = run.metrics()
    times = [line["train_s"] for line in lines]
    assert times == sorted(times)
    assert times[0] > 0
    assert all(x["gradient_norm"] > 0 for x in lines if x["split"] == "train")
    assert [x["epochs"] for x in lines if x["split"] == "validation"] == pytest.approx(
        [1 / 3, 2 / 3, 1.0]
    )
    assert [sum(x["calibration_count"]) for x in lines if x["split"] == "test"][-1] == 200


def test_the_logged_norm_is_that_of_the_step_before_clipping():
    config = decode(RunConfig, {**SMALL, "train": {**SMALL["train"], "clip_norm": 0.001}}, "test")
    task = ClickTask(config)
    loop = Loop(task, config, build_dense_optimizer(config.optimizer, task.model))
    found, expected, compute = [], [], loop._sums.set_gradient_norm

    def keep(norm):
        found.append(float(norm))
        compute(norm)

    loop._sums.set_gradient_norm = keep
    step = task.rows.store.reduce_pending

    def measure():
        step()
        rows = gradients_of(task.rows)
        dense = gradients_of(loop.optimizers[0])
        expected.append(math.sqrt(sum(float(g.square().sum()) for g in (*dense, *rows))))

    task.rows.store.reduce_pending = measure
    for number in loop.steps():
        if number == 3:
            break
    assert found == pytest.approx(expected[::2][: len(found)], rel=1e-5)
    assert len(found) == 3


def test_time_goes_on_where_a_resumed_run_left_off(copy):
    (first, *_, last) = list_checkpoints(copy.checkpoints)
    before = read_log_record(first)["train_s"]
    shutil.rmtree(last)
    outsize.train(copy.config(), copy.path, resume=True, quiet=True)
    history = RunHistory(copy.metrics())
    step = int(first.name.removeprefix("step-"))
    assert all(s > before for x, s in history.clock if x > step)
    assert len(history.clock) == 6
    assert [x for x, _ in history.points("loss", "train")] == [1, 2, 3, 4, 5, 6]


def test_the_report_shows_results_configuration_and_environment(page):
    text = " ".join(page.words)
    for word in ("test log loss", "above Bayes", "embedding memory", "batch_size = 100", "torch",
                 "a <run>", "normalized_entropy"):  # fmt: skip
        assert word in text


def test_curves_draw_each_split_and_the_best_reachable_value():
    lines = [
        {"step": 1, "split": "train", "loss": 0.7},
        {"step": 2, "split": "validation", "loss": 0.6, "bayes_loss": 0.4, "auc": None},
    ]
    words = "".join(ET.fromstring(curve_svg(lines, "loss", "log loss")).itertext())
    drawn = curve_svg(lines, "loss", "log loss")
    for label in ("train", "validation", "best reachable (Bayes)"):
        assert label in drawn or label in words
    assert "test" not in words
    assert ET.fromstring(curve_svg(lines, "auc", "AUC")) is not None


def test_the_best_reachable_value_is_that_of_the_test_split():
    lines = [
        {"step": 2, "split": "validation", "loss": 0.6, "bayes_loss": 0.4},
        {"step": 2, "split": "test", "loss": 0.6, "bayes_loss": 0.5},
    ]
    assert "best reachable (Bayes, test) 0.5000" in curve_svg(lines, "loss", "log loss")
    alike = [{**line, "bayes_loss": 0.5} for line in lines]
    assert "best reachable (Bayes) 0.5000" in curve_svg(alike, "loss", "log loss")


def test_the_traffic_covers_what_followed_the_last_training_line(tmp_path):
    def counts(evictions, lag, rate):
        sizes = {f"sent_{kind}": 1_000 for kind in ("ids", "clocks", "rows", "gradients")}
        return {**sizes, "hit_rate": rate, "evictions": evictions, "largest_lag": lag}

    def words(*lines):
        folder = RunFolder(tmp_path)
        folder.metrics_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return Page(run_page(folder)).words

    RunFolder(tmp_path).begin(decode(RunConfig, SMALL, "test"))
    trained = {"step": 10, "split": "train", "loss": 0.6, **counts(3, 1, 0.5)}
    validated = {"step": 12, "split": "validation", "loss": 0.6}
    rest = {"step": 12, "split": "rows", **counts(4, 2, 0.9)}
    assert "Over steps 1 to 10" in words(trained, validated)
    whole = words(trained, validated, rest)
    assert "Over the whole run" in whole
    for name, value in {"all sent": "8.0 kB", "evictions": "7", "hit rate, at the end": "0.500",
                        "largest lag of a copy that was read": "2"}.items():  # fmt: skip
        assert whole[whole.index(name) + 1] == value
    assert "Rows between ranks" in words(validated, rest), "too short for a training line"


def test_many_tables_are_summed_up():
    use = MemoryUse(1, {"cpu": {"parameters": 4, "index": 0, "optimizer": 0, "cache": 0}})
    drawn = memory_svg({f"t{i}": use for i in range(100)})
    assert "85 others" in drawn


def test_a_cache_is_a_bar_even_beside_many_larger_tables():
    table = MemoryUse(9, {"cpu": {"parameters": 400, "index": 8}})
    cache = MemoryUse(0, {"cpu": {"cache": 4}})
    drawn = memory_svg({**{f"t{i}": table for i in range(20)}, "row cache": cache})
    assert "<th>row cache</th>" in drawn
    assert "</i>cache</span>" in drawn  # in the legend
    assert "5 others" in drawn


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (23_400_000, "23.4 MB"), (2e15, "2.0 PB"), (2e21, "2000.0 EB")],
)
def test_sizes_are_for_people(size, text):
    assert format_bytes(size) == text
