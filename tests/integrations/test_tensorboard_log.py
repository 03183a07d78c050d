"""Event files are read back by TensorBoard's own reader."""

from __future__ import annotations

import pytest
from logged_runs import make_config, stopped_and_resumed

from outsize.errors import WriteError
from outsize.integrations.tensorboard import TensorBoardLog
from outsize.training.run_folder import RunFolder

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    out = tmp_path_factory.mktemp("logged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stopped_and_resumed(make_config("log.tensorboard=true"), out, patch)
    return RunFolder(out)


def test_event_files_hold_what_the_log_holds(resumed):
    events = read(resumed.path / "tensorboard")
    for tag in ("train/loss", "train/learning_rate", "train/gradient_norm", "validation/auc"):
        split, _, name = tag.partition("/")
        expected = [(x["step"], x[name]) for x in resumed.metrics() if x["split"] == split]
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in expected]
        assert [v for _, v in found] == pytest.approx([v for _, v in expected], rel=1e-6)
    assert "batch_size = 100" in str(events.Tensors("config/text_summary"))


def test_a_resumed_run_has_each_step_once_and_one_file(resumed):
    steps = [event.step for event in read(resumed.path / "tensorboard").Scalars("train/loss")]
    assert steps == list(range(1, 9))
    assert len(list((resumed.path / "tensorboard").iterdir())) == 1


def test_relative_time_is_that_of_training(resumed):
    events = read(resumed.path / "tensorboard").Scalars("train/loss")
    lines = [line for line in resumed.metrics() if line["split"] == "train"]
    passed = [event.wall_time - events[0].wall_time for event in events]
    assert passed == pytest.approx([x["train_s"] - lines[0]["train_s"] for x in lines], abs=1e-3)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "tensorboard").write_text("a file")
    with pytest.raises(WriteError, match="could not write the TensorBoard log") as caught:
        TensorBoardLog(tmp_path / "tensorboard")
    assert "\n" not in str(caught.value)


def test_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    TensorBoardLog(tmp_path, [{"step": 1, "split": "train", "loss": 0.5}]).close(failed=False)
    TensorBoardLog(tmp_path, [{"step": 1, "split": "train", "loss": 0.25}]).close(failed=True)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [event.value for event in read(tmp_path).Scalars("train/loss")] == [0.25]
