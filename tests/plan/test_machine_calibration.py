"""Files of calibrations, reference steps, and scaling by them."""

import json
from pathlib import Path

import pytest
import torch
from planned_runs import CALIBRATION

from outsize.errors import ConfigError
from outsize.kernels.threads import torch_threads
from outsize.plan.calibration import default_calibration, load_calibration, save_calibration
from outsize.plan.reference import dense_reference, median_s, rows_reference


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
        (lambda found: {"format": 2, "exchange": {}}, "has format 2, and this version reads 4"),
        (lambda found: {**found, "dense_s": 0.0}, "dense_s is 0.0, which is not a time"),
        (lambda found: {**found, "rows_s": "fast"}, "is not a calibration"),
        (lambda found: {**found, "together": [{}]}, "is not a calibration"),
        (lambda found: {**found, "together": []}, r"is of \[\] ranks, not of 2 and more"),
        (lambda found: {**found, "together": found["together"][::-1]}, r"is of \[4, 2\] ranks"),
        (lambda found: [found], "is not a calibration"),
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
    with pytest.raises(ConfigError, match="is not a calibration"):
        load_calibration(tmp_path)


def test_reference_steps_take_time_and_threads_are_put_back():
    before = torch.get_num_threads()
    with torch_threads(1):
        assert torch.get_num_threads() == 1
        assert median_s(dense_reference(), rounds=3, warmup=1) > 0
        assert median_s(rows_reference(), rounds=3, warmup=1) > 0
    assert torch.get_num_threads() == before


def test_between_numbers_of_ranks_that_were_measured_the_rest_is_a_line():
    three = CALIBRATION.of_ranks(3)
    assert (three.dense, three.rows, three.wait) == pytest.approx((1.25, 1.5, 0.05))
    assert three.round_s == pytest.approx(2.5e-4)
    assert CALIBRATION.of_ranks(4) == CALIBRATION.together[1]
    assert CALIBRATION.of_ranks(1).dense == 1.0


def test_more_ranks_than_were_measured_add_to_rounds_alone():
    many = CALIBRATION.of_ranks(14)
    assert (many.dense, many.rows, many.wait) == (1.5, 2.0, 0.1)
    assert many.round_s == pytest.approx(4e-4)
