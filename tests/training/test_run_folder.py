from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.data import SyntheticConfig
from outsize.errors import ConfigError, DataError, WriteError
from outsize.spec import FeatureSpec, TableSpec
from outsize.tables import CCETable
from outsize.training.config import CheckpointConfig, RunConfig, TrainConfig
from outsize.training.run_folder import RunFolder
from outsize.training.tables_config import TablesConfig

LINES = st.builds(
    lambda step, split, metrics: {**metrics, "step": step, "split": split},
    st.integers(0, 2**62),
    st.text(),
    st.dictionaries(
        st.text(),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        max_size=4,
    ),
)


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin(RunConfig())
    return run


def refusal_to_resume(folder: RunFolder, config: RunConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        folder.require_same_run(config)
    message = str(caught.value)
    assert str(folder.path) in message
    assert "\n" not in message
    return message


def test_a_run_remembers_its_configuration(tmp_path):
    config = RunConfig(
        data=SyntheticConfig(vocabulary=(3, 4)),
        embeddings=TablesConfig(dim=4, init_std=1e-9),
        train=TrainConfig(steps=7, device='"odd"\n\\ name'),
    )
    folder = RunFolder(tmp_path / "deep" / "run")

    folder.begin(config)

    assert folder.config() == config


def test_a_folder_that_holds_a_run_is_refused_and_left_alone(folder):
    before = folder.config_file.read_bytes()

    with pytest.raises(ConfigError) as caught:
        folder.begin(RunConfig(seed=1))

    assert str(folder.path) in str(caught.value)
    assert "--resume" in str(caught.value)
    assert "--out" in str(caught.value)
    assert folder.config_file.read_bytes() == before


def test_a_folder_that_holds_other_things_may_hold_a_run_too(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "config.toml.partial").write_text("cut short by a cra")

    RunFolder(tmp_path).begin(RunConfig())

    assert RunFolder(tmp_path).config() == RunConfig()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "config.toml"}


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_a_file_in_place_of_the_folder_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "file").write_text("")

    with pytest.raises(WriteError) as caught:
        RunFolder(tmp_path / name).begin(RunConfig())

    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_must_be_a_run_to_resume(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        assert "no run to resume" in refusal_to_resume(RunFolder(path), RunConfig())


def test_a_folder_in_use_is_refused_to_a_second_process(folder):
    with (
        folder.lock(),
        pytest.raises(ConfigError, match="another process"),
        RunFolder(folder.path).lock(),
    ):
        pass
    with RunFolder(folder.path).lock():
        assert folder.path.is_dir()


@pytest.mark.parametrize(
    ("config", "key", "was", "now"),
    [
        (RunConfig(seed=5), "seed", "0", "5"),
        (RunConfig(train=TrainConfig(batch_size=512)), "train.batch_size", "2048", "512"),
        (RunConfig(train=TrainConfig(clip_norm=0.5)), "train.clip_norm", "None", "0.5"),
        (RunConfig(embeddings=TablesConfig()), "embeddings.kind", "'store'", "'tables'"),
        (RunConfig(data=SyntheticConfig(vocabulary=(3,))), "data.vocabulary", "[]", "[3]"),
    ],
)
def test_another_configuration_is_refused_with_key_and_both_values(folder, config, key, was, now):
    message = refusal_to_resume(folder, config)

    assert f"{key} was {was} and is now {now};" in message
    assert "--out" in message


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(checkpoint=CheckpointConfig(every=5)),
        RunConfig(checkpoint=CheckpointConfig(keep=9)),
        RunConfig(train=TrainConfig(log_every=7)),
        RunConfig(train=TrainConfig(device="cpu")),
    ],
)
def test_what_does_not_change_the_result_may_change(folder, config):
    folder.require_same_run(config)  # an error otherwise

    assert folder.config() == RunConfig()


def test_what_a_caller_compares_itself_may_change(folder):
    other = RunConfig(train=TrainConfig(batch_size=512))

    folder.require_same_run(other, "train.batch_size")  # an error otherwise

    with pytest.raises(ConfigError, match="seed was 0 and is now 5"):
        folder.require_same_run(replace(other, seed=5), "train.batch_size")


@pytest.mark.parametrize("text", ["seed = ", "sede = 1", 'seed = "1"'])
def test_a_damaged_configuration_is_named(folder, text):
    folder.config_file.write_text(text)

    assert str(folder.config_file) in refusal_to_resume(folder, RunConfig())


def test_a_run_without_lines_has_no_metrics(folder):
    assert folder.metrics() == []


@settings(max_examples=25, deadline=None)
@given(st.lists(LINES, max_size=4))
def test_metrics_read_back_as_they_were_appended(lines):
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        for line in lines:
            folder.log.append(line)

        assert repr(folder.metrics()) == repr(lines)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_null(folder, value):
    folder.log.append({"step": 1, "split": "test", "auc": value})

    text = folder.metrics_file.read_text()

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(text, parse_constant=refuse) == {"step": 1, "split": "test", "auc": None}
    assert folder.metrics() == [{"step": 1, "split": "test", "auc": None}]


def line(step: int, **metrics: Any) -> dict[str, Any]:
    return {"step": step, "split": "train", **metrics}


def test_a_last_line_cut_anywhere_is_dropped(folder):
    folder.log.append(line(1, loss=0.5))
    whole = folder.metrics_file.read_bytes()
    folder.log.append({"step": 2, "loss": 0.25, "split": "ü"})
    last = folder.metrics_file.read_bytes()[len(whole) :]

    for length in range(len(last) - 1):
        folder.metrics_file.write_bytes(whole + last[:length])
        assert folder.metrics() == [line(1, loss=0.5)]


@pytest.mark.parametrize("cut", [1, 2, 8])
def test_lines_appended_after_a_cut_one_are_whole_once_truncated(folder, cut):
    for step in (1, 2):
        folder.log.append(line(step, loss=0.5))
    with folder.metrics_file.open("r+b") as file:
        file.truncate(folder.metrics_file.stat().st_size - cut)

    folder.log.truncate(1)
    folder.log.append(line(2, loss=0.25))

    assert folder.metrics() == [line(1, loss=0.5), line(2, loss=0.25)]


@pytest.mark.parametrize(
    ("step", "kept"), [(0, []), (2, [1, 2, 2]), (3, [1, 2, 2]), (9, [1, 2, 2, 4])]
)
def test_truncating_keeps_the_lines_up_to_a_step(folder, step, kept):
    for line_step in (1, 2, 2, 4):
        folder.log.append(line(line_step, loss=None))

    folder.log.truncate(step)

    assert folder.metrics() == [line(line_step, loss=None) for line_step in kept]


def test_truncating_before_the_first_line_is_written_does_nothing(folder):
    folder.log.truncate(0)

    assert folder.metrics() == []


GOOD = b'{"step": 1, "split": "train", "loss": 0.5}\n'


@pytest.mark.parametrize(
    "broken",
    [
        b"{", b'{"step": 2', b"", b"nonsense", b"3", b"null", b'[{"step": 1}]', b"\xff",
        b"{}", b'{"step": 1}', b'{"split": "train"}', b'{"step": "1", "split": "train"}',
        b'{"step": -1, "split": "train"}', b'{"step": 1, "split": null}',
        b'{"step": 1, "split": "train", "loss": "low"}',
        b'{"step": 1, "split": "test", "auc": [1]}',
        b'{"step": 1, "split": "train", "loss": 1' + b"0" * 400 + b"}",
        b'{"step": 1, "split": "train", "sent_rows": 3}',
        b'{"step": 1, "split": "recluster", "table": "c1"}',
        b'{"step": 1, "split": "recluster", "table": "c1", "entropies": ["x"]}',
        b"[" * 200_000 + b"]" * 200_000,
    ],
    ids=lambda broken: broken[:50].decode(errors="replace"),
)  # fmt: skip
def test_a_broken_line_in_the_middle_is_named(folder, broken):
    folder.metrics_file.write_bytes(GOOD + broken + b"\n" + GOOD)

    with pytest.raises(DataError) as caught:
        folder.metrics()

    assert str(folder.metrics_file) in str(caught.value)
    assert "line 2" in str(caught.value)
    assert "--out" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_log_is_named(folder):
    folder.metrics_file.mkdir()

    for read in (folder.metrics, lambda: folder.log.truncate(1)):
        with pytest.raises(DataError, match="cannot be read: Is a directory") as caught:
            read()
        assert str(folder.metrics_file) in str(caught.value)


def test_a_resumed_run_keeps_exactly_the_lines_its_checkpoint_was_saved_with(folder):
    for step in (1, 2):
        folder.log.append(line(step, loss=0.5))
    facts = folder.log.facts()
    kept = folder.metrics_file.read_bytes()
    for rest in (b"", GOOD, GOOD[:9], b"\xff\xfe", b'{"step": 2, "split": "rows"}\n'):
        folder.metrics_file.write_bytes(kept + rest)
        resumed = RunFolder(folder.path)

        resumed.log.truncate(2, facts)

        assert resumed.metrics_file.read_bytes() == kept
        assert resumed.log.facts() == facts


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (None, "it is missing"),
        (lambda text: b"", "it has 0 bytes where"),
        (lambda text: text[:-1], "bytes where"),
        (lambda text: text[: len(text) // 2], "bytes where"),
        (lambda text: text.split(b"\n", 1)[1], "bytes where"),
        (lambda text: text.split(b"\n", 1)[1] + GOOD * 9, "its first 3 lines are not"),
        (lambda text: text.replace(b"0.5", b"0.4"), "its first 3 lines are not"),
        (lambda text: text.replace(b"\n", b"\r\n"), "its first 3 lines are not"),
    ],
    ids=["missing", "empty", "a byte", "half", "a line", "another line", "a digit", "line ends"],
)
def test_a_log_that_lacks_what_a_checkpoint_was_saved_with_is_refused(folder, damage, fact):
    for step in (1, 2, 3):
        folder.log.append(line(step, loss=0.5))
    facts = folder.log.facts()
    text = folder.metrics_file.read_bytes()
    folder.metrics_file.unlink()
    if damage is not None:
        folder.metrics_file.write_bytes(damage(text))

    with pytest.raises(DataError) as caught:
        RunFolder(folder.path).log.truncate(3, facts)

    message = str(caught.value)
    assert str(folder.metrics_file) in message
    assert fact in message
    assert "--out" in message
    assert "\n" not in message
    if damage is not None:
        assert folder.metrics_file.read_bytes() == damage(text)


def test_a_log_without_lines_may_be_missing(folder):
    folder.log.truncate(0, folder.log.facts())

    assert folder.metrics() == []


def test_a_run_that_begins_again_needs_no_log_that_can_be_read(folder):
    folder.metrics_file.write_bytes(b"\xff\n")

    folder.restart(RunConfig(seed=3))

    assert folder.metrics() == []
    assert folder.config() == RunConfig(seed=3)


@pytest.mark.parametrize(("cap", "expected"), [("max_bytes", "plain"), ("max_params", "auto")])
def test_a_run_of_before_packed_pointers_keeps_its_own(tmp_path, cap, expected):
    folder = RunFolder(tmp_path / "run")
    folder.begin(RunConfig(embeddings=TablesConfig(method="cce", **{cap: 4096})))
    assert folder.config().embeddings.pointers == "auto"
    saved = folder.config_file.read_text()
    folder.config_file.write_text(saved.replace('pointers = "auto"\n', ""))
    assert saved != folder.config_file.read_text()
    found = folder.config().embeddings
    assert found.pointers == expected
    tables = found.build([FeatureSpec("ad")], [TableSpec("ad", 900, 16)], seed=0).tables
    assert type(tables["ad"]) is CCETable
