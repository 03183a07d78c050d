"""`outsize bench calibrate`."""

import pytest

from outsize.bench import calibrate, run_benchmark
from outsize.plan.calibration import load_calibration


@pytest.mark.slow  # starts six processes
def test_it_measures_this_machine_and_writes_a_file_that_a_plan_reads(tmp_path):
    found = run_benchmark("calibrate", tmp_path / "own.json", quick=True, quiet=True)
    read = load_calibration(tmp_path / "own.json")
    assert found == {"out": str(tmp_path / "own.json"), **calibrate.asdict(read)}
    assert all(each.round_s > 0 and each.dense >= 1 for each in read.together)
    assert set(read.wires) == {"float32", "bfloat16", "int8"}
    lines = calibrate.calibration_lines(read, tmp_path / "own.json")
    assert lines[0].startswith("dense ")


def test_a_folder_gets_a_file(tmp_path, monkeypatch):
    alike = {"dense": 1.5, "rows": 1.2, "wait": 0.1, "round_s": 1e-4, "processor_s": 1e-5,
             "byte_s": 1e-9, "mean_s": 3e-4, "mean_byte_s": 2e-9}  # fmt: skip
    monkeypatch.setattr(calibrate, "_ranks_at_once", lambda number: alike)
    found, path = calibrate.calibrate(tmp_path / "folder", lambda line: None, quick=True)
    assert path == tmp_path / "folder" / "calibration.json"
    assert load_calibration(path) == found
    assert found.peer_s == 0.0
    assert (found.of_ranks(2).mean_s, found.of_ranks(2).mean_byte_s) == (3e-4, 2e-9)
    assert found.wires["int8"] > found.wires["float32"]


def test_ranks_are_measured_in_powers_of_two_up_to_the_cores():
    assert calibrate.sizes_of(1) == calibrate.sizes_of(2) == [2, 4]
    assert calibrate.sizes_of(6) == [2, 4, 6]
    assert calibrate.sizes_of(8) == [2, 4, 8]
    assert calibrate.sizes_of(96) == [2, 4, 8, 16, 32]
