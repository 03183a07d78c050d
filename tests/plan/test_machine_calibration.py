"""Files of calibrations, reference steps, and scaling by them."""

import json
from pathlib import Path

import pytest
import torch
from planned_runs import CALIBRATION

from outsize.errors import ConfigError
from outsize.plan.calibration import default_calibration, load_calibration, save_calibration
from outsize.plan.reference import dense_reference, median_s, rows_reference, torch_threads


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "calibration.json"
    save_calibration(CALIBRATION, path)
    assert load_calibration(path) == CALIBRATION


def test_the_file_of_a_user_is_in_the_folder_of_caches():
    assert default_calibration({"XDG_CACHE_HOME": "/x"}) == Path("/x/outsize/calibration.json")
    assert default_calibration({}) == Path.home() / ".cache" / "outsize" / "calibration.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {**found, "format": 2}, "has format 2, and this version reads 1"),
        (lambda found: {**found, "dense_s": 0.0}, "dense_s is 0.0, which is no time"),
        (lambda found: {**found, "rows_s": "fast"}, "is no calibration"),
        (lambda found: {**found, "exchange": {}}, "is no calibration"),
        (lambda found: [found], "is no calibration"),
    ],
)
def test_what_is_no_calibration_is_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "calibration.json"
    save_calibration(CALIBRATION, path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ConfigError, match=message) as caught:
        load_calibration(path)
    assert "outsize bench calibrate" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_is_no_calibration(tmp_path):
    with pytest.raises(ConfigError, match="is no calibration"):
        load_calibration(tmp_path)


def test_reference_steps_take_time_and_threads_are_put_back():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
        assert median_s(dense_reference(), rounds=3, warmup=1) > 0
        assert median_s(rows_reference(), rounds=3, warmup=1) > 0
    assert torch.get_num_threads() == before
