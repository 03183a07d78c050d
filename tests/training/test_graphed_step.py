"""Steps as CUDA graphs: what refuses them, and that nothing else changes."""

import warnings
from dataclasses import replace
from itertools import islice

import pytest
import torch
from test_loop import (
    Recorder,
    assert_same_tree,
    curve,
    final_weights,
    make_config,
    make_loop,
    train_until,
)

import outsize
from outsize.contracts import Bag
from outsize.data import ClickBatch
from outsize.data.packed_clicks import ClickLayout, packed
from outsize.errors import ConfigError, IdError, NonFiniteError
from outsize.models import CLICK_MODELS
from outsize.training.graphed_step import GraphedStep, _is_known, fits_layout, why_not_graphed
from outsize.training.run import _determinism
from outsize.training.step import EagerStep

CUDA = torch.device("cuda", 0)
ON_GPU = ("train.device=cuda", "data.num_train=2_000", "train.deterministic=true")
KINDS = [("adamw", "adagrad"), ("sgd", "sgd"), ("adagrad", "adagrad")]


def test_the_cpu_takes_steps_without_a_graph():
    assert isinstance(make_loop(make_config("train.device=cpu"))._step, EagerStep)
    with pytest.raises(ConfigError, match=r"cuda_graph = true, but the device is cpu.*leave it"):
        make_loop(make_config("train.device=cpu", "train.cuda_graph=true"))


def test_rows_that_are_not_fused_are_refused():
    store = outsize.LocalStore([outsize.TableSpec("a", 3, 2)])
    outsize.RowSGD(store)
    reason = why_not_graphed(make_config(), CUDA, store)
    assert "set embeddings.optimizer.fused = true" in reason
    outsize.RowSGD(store, fused=True)
    assert "Triton" in why_not_graphed(make_config(), CUDA, store)  # these are on the CPU


def test_tables_need_no_fused_rows():
    assert not why_not_graphed(make_config(), CUDA, None)


def test_only_batches_of_its_layout_are_for_a_graph():
    ids = torch.arange(6)
    batch = ClickBatch(torch.rand(6, 2), {"a": ids, "b": ids}, torch.ones(6))
    layout = ClickLayout.of(batch)
    assert fits_layout(batch, layout)
    assert fits_layout(packed(batch, torch.device("cpu")), layout)
    assert fits_layout(replace(batch, probability=torch.rand(6)), layout)
    bag = Bag(ids, torch.arange(6))
    for other in (
        batch.slice(0, 5),
        replace(batch, num_global=12),
        replace(batch, ids={"a": ids, "b": bag}),
        replace(batch, ids={"a": ids, "b": ids.int()}),
        replace(batch, ids={"a": ids}),
        replace(batch, dense=torch.rand(6, 3)),
    ):
        assert not fits_layout(other, layout)


def fitted(*settings):
    recorder = Recorder()
    loop = make_loop(make_config(*ON_GPU, *settings), callbacks=recorder)
    loop.fit()
    return loop, recorder


def numbers(recorder):
    return untimed(recorder.lines)


def untimed(lines):
    kept = [dict(line) for line in lines]
    for line in kept:
        for timed in ("examples_per_s", "train_s", "seconds"):
            line.pop(timed, None)
    return kept


@pytest.mark.gpu
@pytest.mark.parametrize(("dense", "rows"), KINDS)
def test_a_graph_trains_as_steps_without_it_bit_for_bit(dense, rows):
    settings = (
        f"optimizer.kind={dense}", f"embeddings.optimizer.kind={rows}", "schedule.shape=cosine",
        "schedule.warmup_steps=4",
    )  # fmt: skip
    graphed, one = fitted(*settings)
    eager, other = fitted(*settings, "train.cuda_graph=false")
    assert not one.said
    assert isinstance(graphed._step, GraphedStep)
    assert graphed._step.is_captured
    assert isinstance(eager._step, EagerStep)
    assert_same_tree(graphed.state_dict()["model"], eager.state_dict()["model"])
    for name, tensor in graphed.task.embeddings.store.state_dict().items():
        assert torch.equal(tensor, eager.task.embeddings.store.state_dict()[name]), name
    assert numbers(one) == numbers(other)


@pytest.mark.gpu
def test_a_graph_trains_as_the_cpu_does_within_rounding():
    settings = ("train.steps=40", "optimizer.kind=sgd", "embeddings.optimizer.kind=sgd")
    graphed, one = fitted(*settings)
    _, other = fitted(*settings, "train.device=cpu", "train.deterministic=false")
    assert graphed._step.is_captured
    for line, same in zip(one.of("train"), other.of("train"), strict=True):
        assert line["loss"] == pytest.approx(same["loss"], rel=1e-3)
        assert line["gradient_norm"] == pytest.approx(same["gradient_norm"], rel=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_a_graph_trains_on_another_device_than_the_current_one():
    graphed, one = fitted("train.device=cuda:1")
    _, other = fitted("train.device=cuda:1", "train.cuda_graph=false")
    assert not one.said
    assert graphed._step.is_captured
    assert numbers(one) == numbers(other)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["dlrm", "dcnv2", "deepfm", "wide-deep", "logistic"])
def test_every_model_can_be_captured(model, precision):
    config = replace(
        make_config(*ON_GPU, f"train.precision={precision}", "train.steps=20"),
        model=CLICK_MODELS[model](),
    )
    recorder = Recorder()
    loop = make_loop(config, callbacks=recorder)
    loop.fit()
    assert not recorder.said
    assert loop._step.is_captured


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", ["true", "false"])
def test_no_step_between_log_lines_waits_for_the_device(cuda_graph):
    rare = [f"{name}=1000" for name in ("train.log_every", "checkpoint.every")]
    config = make_config(*ON_GPU, *rare, f"train.cuda_graph={cuda_graph}")
    loop = make_loop(replace(config, train=replace(config.train, validate_every=None)))
    steps = loop.steps()
    for _ in range(8):
        next(steps)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for _ in range(16):
                next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [str(w.message) for w in found if "synchron" in str(w.message)]
    assert not waits
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchron"):  # what was counted can be counted
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize(("dense", "rows"), KINDS)
def test_a_run_on_cuda_stopped_and_resumed_is_bit_identical(tmp_path, dense, rows):
    config = make_config(
        *ON_GPU, f"optimizer.kind={dense}", f"embeddings.optimizer.kind={rows}",
        "schedule.shape=cosine",
    )  # fmt: skip
    outsize.train(config, tmp_path / "whole", quiet=True)
    for stop in (2, 13, 40):
        out = tmp_path / f"stopped-{stop}"
        train_until(stop, config, out)
        outsize.train(config, out, resume=True, quiet=True)
        assert curve(out) == curve(tmp_path / "whole")
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))


@pytest.mark.gpu
def test_a_run_of_compressed_tables_stopped_and_resumed_is_bit_identical(tmp_path):
    tables = ("kind=tables", "method=cce", "max_params=400", "recluster.count=2")
    config = make_config(*ON_GPU, *(f"embeddings.{setting}" for setting in tables))
    outsize.train(config, tmp_path / "whole", quiet=True)
    whole = untimed(curve(tmp_path / "whole"))
    reclustered = [line["step"] for line in whole if "table" in line]
    assert len(set(reclustered)) == 2
    for stop in (2, reclustered[0] - 1, reclustered[0] + 2, reclustered[-1] + 2):
        out = tmp_path / f"stopped-{stop}"
        train_until(stop, config, out)
        outsize.train(config, out, resume=True, quiet=True)
        assert untimed(curve(out)) == whole
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", ["true", "false"])
def test_the_step_that_became_nan_is_named(cuda_graph):
    loop = make_loop(make_config(*ON_GPU, "train.log_every=20", f"train.cuda_graph={cuda_graph}"))
    steps = loop.steps()
    for _ in range(12):
        next(steps)
    with torch.no_grad():
        next(loop.task.model.top.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match="NaN or infinite at step 13;"):
        list(islice(steps, 10))


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graph", ["true", "false"])
def test_a_bad_id_is_found_at_the_next_line(cuda_graph):
    loop = make_loop(make_config(*ON_GPU, "train.log_every=10", f"train.cuda_graph={cuda_graph}"))
    original = loop.task.train_batches

    def damaged(epoch, start, part=None):
        for number, batch in enumerate(original(epoch, start, part)):
            if number == 7:
                batch.ids["c1"][3] = 10**6
            yield batch

    loop.task.train_batches = damaged
    steps = loop.steps()
    with pytest.raises(IdError, match="id 1000000 is outside"):
        list(islice(steps, 10))
    assert loop.state.step == 10


@pytest.mark.gpu
@pytest.mark.parametrize("method", sorted(outsize.TABLES))
def test_tables_are_captured_and_captured_again_after_a_recluster(method):
    tables = {"kind": "tables", "method": method}
    if method != "full":
        tables |= {"max_params": 400}
    settings = [f"embeddings.{name}={value}" for name, value in tables.items()]
    settings += ["train.clip_norm=0.5", "optimizer.kind=adagrad"]
    with _determinism(True):  # torch adds the gradients of full tables by atomic operations
        graphed, one = fitted(*settings)
        _, other = fitted(*settings, "train.cuda_graph=false")
    assert graphed._step.is_captured
    assert bool(one.of("recluster")) == (method in ("cce", "circular"))
    assert numbers(one) == numbers(other)


def test_models_and_tables_of_others_are_captured_only_if_asked_for(monkeypatch):
    tables = make_config(
        "embeddings.kind=tables", "embeddings.method=hash", "embeddings.max_params=9"
    )
    assert _is_known(tables)
    monkeypatch.setitem(outsize.TABLES, "hash", type("OwnTable", (outsize.TABLES["hash"],), {}))
    assert not _is_known(tables)
    assert _is_known(make_config())
    own = type("OwnConfig", (CLICK_MODELS["dlrm"],), {})
    assert not _is_known(replace(make_config(), model=own()))
