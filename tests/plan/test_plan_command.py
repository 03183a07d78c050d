"""`outsize plan`."""

import json

import pytest
from planned_runs import CACHED, CALIBRATION, CLICKS, make_config

from outsize.cli import main
from outsize.plan.calibration import default_calibration, save_calibration
from outsize.training.strict_toml import encode, to_toml


@pytest.fixture
def plan(tmp_path, capsys, monkeypatch):
    """Run the command; returns its exit code, output and messages."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    (tmp_path / "run.toml").write_text(to_toml(encode(make_config(CLICKS, *CACHED))))

    def run(*words):
        with pytest.raises(SystemExit) as error:
            main(["plan", str(tmp_path / "run.toml"), *words])
        out, messages = capsys.readouterr()
        return error.value.code, out, messages

    return run


def test_it_prints_first_whether_the_run_fits(plan):
    code, out, messages = plan("--ranks", "2", "--sample-steps", "4")
    assert (code, out) == (0, "")
    assert messages.startswith("It fits: each of 2 ranks takes at most")
    assert "hit rate of the cache" in messages
    assert "parameters per rank  bytes per rank" in messages


def test_an_epoch_of_few_steps_on_many_ranks_asks_for_the_number_of_examples(plan):
    words = ("--ranks", "40", "--sample-steps", "2", "--link", "25Gbit")
    few = "an epoch of so many ranks is one step, in which caches are nearly empty"
    assert few in plan(*words)[2]
    assert few not in plan(*words, "--examples", "100000000")[2]


def test_it_prints_one_object(plan):
    code, out, messages = plan("--json", "--memory", "1kB")
    found = json.loads(out)
    assert (code, messages) == (0, "")
    assert found["fits"] is False
    assert found["steps"] == 38
    assert found["tables"][0]["rows"] == 10
    assert found["ways"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranks", "0"), "--ranks must be at least 1, but got 0"),
        (("--sample-steps", "1"), "--sample-steps must be at least 2, but got 1"),
        (("--examples", "0"), "--examples must be at least 1, but got 0"),
        (("--memory", "much"), "'much' is not a size of memory: write it as 2GB, 512MB or 1.5GiB"),
    ],
)
def test_errors_are_one_line(plan, words, message):
    code, out, messages = plan(*words)
    assert (code, out, messages) == (2, "", f"outsize: {message}\n")


def test_the_calibration_of_this_user_is_found(plan, tmp_path):
    assert json.loads(plan("--json")[1])["time"] is None
    save_calibration(CALIBRATION, default_calibration())
    found = json.loads(plan("--json")[1])["time"]
    assert found["dense_s"] > 0
    assert found["moves"]
    _, _, messages = plan()
    assert "times are those of a machine of 2 cores, today" in messages
    assert "a step would take" in messages


def test_a_calibration_that_is_not_there_is_one_line(plan, tmp_path):
    path = tmp_path / "none.json"
    code, out, messages = plan("--calibration", str(path))
    assert (code, out) == (2, "")
    assert messages == (
        f"outsize: {path}: there is no calibration; measure again: outsize bench calibrate "
        f"--out {path}\n"
    )
