import json
import math
import os
import signal
import time
from dataclasses import replace

import processes
import pytest
import torch
from safetensors.torch import load_file

import outsize
from outsize.checkpoint import latest_checkpoint, load_checkpoint
from outsize.errors import CheckpointError, ConfigError, IdError, NonFiniteError
from outsize.training.build import build_dense_optimizer
from outsize.training.callbacks import Callbacks
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.loop_state import LoopState
from outsize.training.run import _determinism
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, encode, override, to_toml
from outsize.training.tasks import ClickTask

BASE = {
    "data": {
        "num_train": 1_000, "num_validation": 300, "num_test": 300, "num_dense": 3,
        "num_categorical": 4, "largest_vocabulary": 200,
    },
    "model": {"bottom": [8], "top": [8]},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 64, "epochs": 2, "validate_every": 7, "log_every": 5,
              "early_stop": False},
    "checkpoint": {"every": 6},
}  # fmt: skip


def make_config(*settings):
    return decode(RunConfig, override(BASE, settings), "test")


def make_loop(config, checkpoints=None, callbacks=None, stop_asked=lambda: False):
    task = ClickTask(config)
    optimizer = build_dense_optimizer(config.optimizer, task.model)
    return Loop(task, config, optimizer, callbacks, checkpoints, stop_asked)


class Recorder(Callbacks):
    def __init__(self):
        self.lines = []
        self.said = []

    def log(self, line):
        self.lines.append(dict(line))

    def say(self, text):
        self.said.append(text)

    def of(self, split):
        return [line for line in self.lines if line["split"] == split]


def curve(folder):
    """Every logged number but the clock's."""
    lines = [dict(line) for line in RunFolder(folder).metrics()]
    for line in lines:
        for name in ("examples_per_s", "train_s"):
            line.pop(name, None)
    return lines


def final_weights(folder):
    """All that the newest checkpoint holds, rows of all ranks included."""
    newest = latest_checkpoint(folder / "checkpoint")
    rows = [load_file(path) for path in sorted(newest.glob("rows-*.safetensors"))]
    return {**load_checkpoint(newest), "rows": rows}


def assert_same_tree(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_tree(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same_tree(left, right)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


OPTIMIZERS = [
    ("adamw", "adagrad"), ("sgd", "sgd"), ("adagrad", "adam"), ("sgd", "full-adagrad"),
]  # fmt: skip


@pytest.mark.parametrize(("dense", "rows"), OPTIMIZERS)
def test_a_run_stopped_at_any_step_and_resumed_is_bit_identical(tmp_path, dense, rows):
    config = make_config(
        f"optimizer.kind={dense}", f"embeddings.optimizer.kind={rows}",
        "schedule.shape=cosine", "schedule.warmup_steps=4", "train.clip_norm=0.5",
        "train.deterministic=true",
    )  # fmt: skip
    outsize.train(config, tmp_path / "whole", quiet=True)
    for stop in (1, 13, 16, 31):
        out = tmp_path / f"stopped-{stop}"
        train_until(stop, config, out)
        outsize.train(config, out, resume=True, quiet=True)
        assert curve(out) == curve(tmp_path / "whole")
        assert_same_tree(final_weights(out), final_weights(tmp_path / "whole"))


def train_until(step, config, out):
    """The beginning of a run that is asked to stop after a step."""
    folder = RunFolder(out)
    folder.begin(config)
    with torch.random.fork_rng(), _determinism(config.train.deterministic):
        torch.manual_seed(config.seed)
        loop = make_loop(config, folder.checkpoints, _Writes(folder))
        loop._stop_asked = lambda: loop.state.step == step
        with pytest.raises(KeyboardInterrupt):
            loop.fit()


class _Writes(Callbacks):
    def __init__(self, folder):
        self._folder = folder

    def log(self, line):
        self._folder.log.append(line)


@pytest.mark.parametrize("num_train", [9_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_run_killed_at_any_moment_resumes_to_the_same_end(tmp_path, num_train):
    run = tmp_path / "run.toml"
    run.write_text(
        to_toml(
            encode(
                make_config(
                    f"data.num_train={num_train}", "checkpoint.every=3", "train.deterministic=true"
                )
            )
        )
    )
    command = ["-m", "outsize", "train", run]
    whole = tmp_path / "whole"
    assert processes.run(*command, "--out", whole).returncode == 0
    out = tmp_path / "killed"
    kills = 0
    for attempt in range(60):
        resume = ["--resume"] if (out / "config.toml").exists() else []
        process = processes.Started([*command, "--out", out, *resume])
        # Wait for progress, then a moment that differs with every attempt.
        before = steps_logged(out)
        while process.poll() is None and steps_logged(out) < before + 30:
            time.sleep(0.01)
        time.sleep(0.013 * (attempt % 7))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors
        if process.returncode == 0:
            break
    assert kills >= 3
    assert curve(out) == curve(whole)
    assert_same_tree(final_weights(out), final_weights(whole))


def steps_logged(out):
    """The last step in a log that is being written."""
    try:
        last = (out / "metrics.jsonl").read_text().splitlines()[-1]
        return json.loads(last)["step"]
    except (FileNotFoundError, IndexError, json.JSONDecodeError):
        return 0


def test_sigterm_saves_before_it_stops(tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(
        to_toml(encode(make_config("data.num_train=2_000_000", "checkpoint.every=9999")))
    )
    out = tmp_path / "out"
    process = processes.Started(["-m", "outsize", "train", run, "--out", out])
    while steps_logged(out) < 5 and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in errors
    assert "Traceback" not in errors
    assert latest_checkpoint(out / "checkpoint") is not None


def test_the_loss_falls_towards_bayes():
    config = make_config(
        "data.num_train=40_000",
        "train.epochs=1",
        "data.signal=3.0",
        "train.validate_every=200",
        "checkpoint.every=1000",
    )
    result = outsize.train(config, quiet=True)
    assert result.out is None
    chance = -sum(p * math.log(p) for p in (0.25, 0.75))
    assert result.test["bayes_loss"] < result.test["loss"] < 0.95 * chance
    assert result.test["auc"] > 0.65


def test_early_stopping_ends_after_an_epoch_worse_than_the_one_before():
    class Scripted(Recorder):
        pass

    config = make_config("train.early_stop=true", "train.epochs=5", "train.validate_every=8")
    callbacks = Scripted()
    loop = make_loop(config, callbacks=callbacks)
    # Two validations an epoch; the third epoch's best (0.45) is worse than the second's (0.40).
    losses = iter([0.60, 0.50, 0.40, 0.48, 0.45, 0.46, 0.10])
    loop.task.evaluate = lambda split: {"loss": next(losses) if split == "validation" else 0.0}
    loop.fit()
    assert loop.state.stopped == "early"
    assert loop.state.step == 3 * 16
    assert loop.state.best == {"step": 24, "loss": 0.40}
    expected = "epoch 3 got no better than loss 0.45000, the one before reached 0.40000"
    assert callbacks.said == [f"stopped early: {expected}"]


def test_early_stopping_names_the_metric_it_judges_by():
    callbacks = Recorder()
    config = make_config("train.early_stop=true", "train.epochs=3", "train.validate_every=16")
    loop = make_loop(config, callbacks=callbacks)
    loop.task.judge, loop.task.higher_is_better = "auc", True
    scores = iter([0.7, 0.6])
    loop.task.evaluate = lambda split: {"auc": next(scores) if split == "validation" else 0.0}
    loop.fit()
    expected = "epoch 2 got no better than auc 0.60000, the one before reached 0.70000"
    assert callbacks.said == [f"stopped early: {expected}"]


def test_an_epoch_as_good_as_the_one_before_does_not_end_a_run():
    loop = make_loop(
        make_config("train.early_stop=true", "train.epochs=3", "train.validate_every=8")
    )
    losses = iter([0.5, 0.4, 0.4, 0.6, 0.41, 0.4])
    loop.task.evaluate = lambda split: {"loss": next(losses) if split == "validation" else 0.0}
    loop.fit()
    assert (loop.state.stopped, loop.state.epoch) == ("finished", 3)
    assert loop.state.best == {"step": 16, "loss": 0.4}  # the first of equals


def test_a_stop_that_is_asked_for_when_the_run_has_ended_changes_nothing(tmp_path):
    config = make_config("train.steps=3")
    loop = make_loop(config, tmp_path, stop_asked=lambda: bool(loop.state.stopped))
    loop.fit()
    assert loop.state.stopped == "finished"
    asked = make_loop(config, tmp_path / "other", stop_asked=lambda: asked.state.step == 2)
    with pytest.raises(KeyboardInterrupt):
        asked.fit()


def test_a_task_begins_once():
    loop = make_loop(make_config("train.steps=2"))
    begun = []
    loop.task.begin = lambda: begun.append(loop.state.step)
    loop.begin()
    loop.begin()
    loop.fit()
    assert begun == [0]


def test_without_early_stopping_all_epochs_are_trained():
    loop = make_loop(make_config("train.epochs=3", "train.validate_every=8"))
    losses = iter([0.6, 0.5, 0.7, 0.8, 0.9, 0.9])
    loop.task.evaluate = lambda split: {"loss": next(losses) if split == "validation" else 0.0}
    loop.fit()
    assert (loop.state.stopped, loop.state.epoch) == ("finished", 3)


def test_steps_end_a_run_within_an_epoch_with_a_validation():
    recorder = Recorder()
    loop = make_loop(make_config("train.steps=9"), callbacks=recorder)
    loop.fit()
    assert loop.state.step == 9
    assert [line["step"] for line in recorder.of("validation")] == [7, 9]
    assert [line["step"] for line in recorder.of("train")] == [5]


def test_the_log_holds_every_metric():
    recorder = Recorder()
    make_loop(make_config("train.steps=7"), callbacks=recorder).fit()
    (validation,) = recorder.of("validation")
    names = {"loss", "auc", "normalized_entropy", "calibration", "bayes_loss", "bayes_auc"}
    assert names <= validation.keys()
    assert recorder.of("train")[0].keys() >= {
        "loss", "learning_rate", "embedding_learning_rate", "examples_per_s", "epoch", "train_s",
        "gradient_norm",
    }  # fmt: skip
    assert recorder.of("test")


def test_the_schedule_sets_the_rates_of_dense_weights_and_rows():
    config = make_config(
        "schedule.shape=linear", "schedule.warmup_steps=2", "train.steps=6", "train.log_every=1",
        "optimizer.learning_rate=0.01", "embeddings.optimizer.learning_rate=0.2",
    )  # fmt: skip
    recorder = Recorder()
    loop = make_loop(config, callbacks=recorder)
    found = []
    for _ in loop.steps():
        found.append([optimizer.param_groups[0]["lr"] for optimizer in loop.optimizers])
    factors = [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert found == [pytest.approx([0.01 * factor, 0.2 * factor]) for factor in factors]
    assert [line["learning_rate"] for line in recorder.of("train")] == [dense for dense, _ in found]


def test_the_logged_loss_is_the_mean_over_the_steps_since_the_last_line():
    recorder = Recorder()
    loop = make_loop(make_config("train.steps=5", "train.log_every=2"), callbacks=recorder)
    losses, compute = [], loop.task.loss

    def loss(batch):
        losses.append(compute(batch))
        return losses[-1]

    loop.task.loss = loss
    loop.fit()
    first, second, third, fourth, _ = (float(value.detach()) for value in losses)
    assert [line["loss"] for line in recorder.of("train")] == pytest.approx(
        [(first + second) / 2, (third + fourth) / 2]
    )


def test_clipping_bounds_the_joint_norm_of_dense_and_row_gradients():
    config = make_config("train.clip_norm=0.001", "optimizer.kind=sgd",
                         "optimizer.learning_rate=1.0", "embeddings.optimizer.kind=sgd",
                         "embeddings.optimizer.learning_rate=1.0", "train.steps=1")  # fmt: skip
    loop = make_loop(config)
    before = {k: v.clone() for k, v in loop.task.model.state_dict().items()}
    next(loop.steps())
    moved = [
        (value - before[name]).flatten()
        for name, value in loop.task.model.state_dict().items()
        if value.is_floating_point()
    ]
    assert torch.cat(moved).norm().item() == pytest.approx(0.001, rel=0.01)


@pytest.mark.parametrize("place", ["top.0.weight", "rows", "loss"])
def test_nan_stops_the_run_before_anything_is_applied(place):
    loop = make_loop(make_config("train.device=cpu"))  # CUDA finds it a little later
    steps = loop.steps()
    next(steps)
    clean = {k: v.clone() for k, v in loop.task.model.state_dict().items()}
    original = loop.task.loss

    def poisoned(batch):
        loss = original(batch)
        if place == "loss":
            return loss * float("nan")
        if place == "rows":
            loss.register_hook(lambda gradient: gradient)
            vectors = loop.task.model.embeddings.stacked(batch.ids)
            return loss + (vectors * float("nan")).sum() * 0.0
        parameter = dict(loop.task.model.named_parameters())[place]
        return loss + (parameter * float("nan")).sum() * 0.0

    loop.task.loss = poisoned
    with pytest.raises(NonFiniteError, match=r"step 2 \(epoch 1, batch 2\)") as caught:
        next(steps)
    assert "\n" not in str(caught.value)
    expected = {"top.0.weight": "top.0.weight", "rows": "embedding rows", "loss": "gradient of"}
    assert expected[place] in str(caught.value)
    for name, value in loop.task.model.state_dict().items():
        assert torch.equal(value, clean[name])


def test_an_id_out_of_range_stops_the_run_in_one_line():
    loop = make_loop(make_config())
    original = loop.task.data.examples

    def corrupted(split, first, stop, epoch=0):
        batch = original(split, first, stop, epoch)
        batch.ids["c2"][0] = 10**6
        return batch

    loop.task.data.examples = corrupted
    with pytest.raises(IdError, match="feature 'c2': id 1000000 is outside"):
        loop.fit()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("train.clip_norm=0.5", r"train\.clip_norm was None and is now 0\.5"),
        ("train.batch_size=32", r"batches of 64 \(1 rank of 64\).* 1 rank of 32 would make 32: "
                                r"set train\.batch_size=64"),
    ],
)  # fmt: skip
def test_resuming_with_another_configuration_is_refused(tmp_path, setting, expected):
    outsize.train(make_config("train.steps=2"), tmp_path / "run", quiet=True)
    before = final_weights(tmp_path / "run")
    with pytest.raises(ConfigError, match=expected) as caught:
        outsize.train(
            make_config("train.steps=2", setting), tmp_path / "run", resume=True, quiet=True
        )
    assert "\n" not in str(caught.value)
    assert_same_tree(final_weights(tmp_path / "run"), before)


def test_resuming_before_the_first_checkpoint_begins_again(tmp_path):
    RunFolder(tmp_path / "run").begin(make_config("train.steps=2"))
    RunFolder(tmp_path / "run").log.append({"step": 1, "split": "train"})
    changed = make_config("train.steps=2", "train.batch_size=32")
    outsize.train(changed, tmp_path / "run", resume=True, quiet=True)
    outsize.train(changed, tmp_path / "fresh", quiet=True)
    assert RunFolder(tmp_path / "run").config() == changed
    assert curve(tmp_path / "run") == curve(tmp_path / "fresh")
    assert_same_tree(final_weights(tmp_path / "run"), final_weights(tmp_path / "fresh"))


def test_updates_held_back_are_applied_before_they_are_measured_and_saved(tmp_path):
    loop = make_loop(make_config("train.steps=7"), tmp_path / "checkpoint")
    happened = []
    evaluate, flush = loop.task.evaluate, loop.task.rows.store.flush
    loop.task.evaluate = lambda split: happened.append(split) or evaluate(split)
    loop.task.rows.store.flush = lambda: happened.append("flush") or flush()
    loop.fit()
    # A checkpoint after step 6, the end at 7: validation, test and a checkpoint.
    assert happened == ["flush", "flush", "validation", "test", "flush"]


def test_resuming_on_other_data_is_refused(tmp_path):
    source = tmp_path / "clicks.csv"
    rows = [f"{i % 2},{i % 7},{i % 5}" for i in range(200)]
    source.write_text("\n".join(["label,user,item", *rows]) + "\n")
    run = tmp_path / "run.toml"
    run.write_text(
        f'[data]\nkind = "tabular"\npath = ["{source}"]\nlabel = "label"\n'
        'categorical = ["user", "item"]\n[train]\nbatch_size = 64\nsteps = 2\n'
    )
    outsize.train(run, tmp_path / "run", quiet=True)
    os.utime(source, (1, 1))  # a copy of the same file is the same data
    outsize.train(run, tmp_path / "run", resume=True, quiet=True)
    source.write_text("\n".join(["label,user,item", *rows[::-1][:150]]) + "\n")
    with pytest.raises(ConfigError, match="the data has changed"):
        outsize.train(run, tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize("name", ["state.safetensors", "rows-00000-of-00001.safetensors"])
def test_resuming_from_a_damaged_checkpoint_is_refused_in_one_line(tmp_path, name):
    config = make_config()
    outsize.train(config, tmp_path / "run", quiet=True)
    newest = latest_checkpoint(tmp_path / "run" / "checkpoint")
    with (newest / name).open("r+b") as file:
        file.truncate(100)
    with pytest.raises(CheckpointError, match=r"damaged.*remove this folder") as caught:
        outsize.train(config, tmp_path / "run", resume=True, quiet=True)
    assert "\n" not in str(caught.value)


def test_a_finished_run_resumes_to_nothing_new(tmp_path):
    config = make_config()
    first = outsize.train(config, tmp_path / "run", quiet=True)
    lines = curve(tmp_path / "run")
    again = outsize.train(config, tmp_path / "run", resume=True, quiet=True)
    assert again.test == first.test
    assert curve(tmp_path / "run") == lines


def test_a_full_disk_during_a_checkpoint_leaves_the_earlier_ones(tmp_path):
    """RLIMIT_FSIZE makes the kernel refuse to write past a size, as a full disk would."""
    run, out = tmp_path / "run.toml", tmp_path / "out"
    run.write_text(to_toml(encode(make_config())))
    train_until(6, make_config(), out)
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000));"
        "sys.argv = sys.argv[1:]; runpy.run_module('outsize', run_name='__main__')"
    )
    failed = processes.run("-c", limited, "-m", "train", run, "--out", out, "--resume")
    assert failed.returncode == 2, failed.stderr
    assert "could not write checkpoint" in failed.stderr
    assert "Traceback" not in failed.stderr
    kept = latest_checkpoint(out / "checkpoint")
    assert kept.name == "step-0000000006"
    assert load_checkpoint(kept)["loop"]["step"] == 6
    assert [p.name for p in (out / "checkpoint").iterdir()] == [kept.name]


def test_tables_train_through_the_dense_optimizer():
    config = make_config("embeddings.kind=tables", "train.steps=5")
    loop = make_loop(config)
    assert len(loop.optimizers) == 1
    before = loop.task.model.embeddings.tables["c1"].weight.detach().clone()
    loop.fit()
    assert not torch.equal(loop.task.model.embeddings.tables["c1"].weight.detach(), before)


def test_bfloat16_on_the_cpu_is_refused():
    with pytest.raises(ConfigError, match="bfloat16"):
        ClickTask(make_config("train.precision=bfloat16", "train.device=cpu"))


def test_a_device_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"train\.device"):
        ClickTask(make_config("train.device=toaster"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused():
    with pytest.raises(ConfigError, match="no usable CUDA"):
        ClickTask(make_config("train.device=cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_on_cuda_reaches_the_cpu_loss(precision):
    settings = ["data.num_train=40_000", "train.epochs=1"]
    cpu = outsize.train(make_config(*settings, "train.device=cpu"), quiet=True)
    gpu = outsize.train(
        make_config(*settings, "train.device=cuda", f"train.precision={precision}"), quiet=True
    )
    assert gpu.test["loss"] == pytest.approx(cpu.test["loss"], abs=0.01)


@pytest.mark.gpu
def test_nan_on_cuda_is_found_before_a_checkpoint(tmp_path):
    loop = make_loop(make_config("train.device=cuda"), tmp_path / "checkpoint")
    original = loop.task.loss
    loop.task.loss = lambda batch: original(batch) * float("nan")
    with pytest.raises(NonFiniteError, match="NaN"):
        loop.fit()
    assert latest_checkpoint(tmp_path / "checkpoint") is None


def test_a_run_does_not_disturb_the_callers_random_numbers():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    outsize.train(make_config("train.steps=2"), quiet=True)
    assert torch.equal(torch.rand(4), expected)


def test_a_config_can_be_changed_in_python():
    config = make_config()
    shorter = replace(config, train=replace(config.train, steps=1))
    assert outsize.train(shorter, quiet=True).steps == 1


def test_a_state_without_what_came_later_is_still_read():
    known = {"step": 7, "best": {"loss": 0.4}}
    assert LoopState.from_dict(known) == LoopState(step=7, best={"loss": 0.4})
