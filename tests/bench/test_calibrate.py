"""`outsize bench calibrate`."""

import pytest

from outsize.bench import calibrate, run_benchmark
from outsize.plan.calibration import load_calibration


@pytest.mark.slow  # starts six processes
def test_it_measures_this_machine_and_writes_a_file_that_a_plan_reads(tmp_path):
    found = run_benchmark("calibrate", tmp_path / "own.json", quick=True, quiet=True)
    read = load_calibration(tmp_path / "own.json")
    assert found == {"out": str(tmp_path / "own.json"), **calibrate.asdict(read)}
    assert read.exchange.round_s > 0
    assert set(read.wires) == {"float32", "bfloat16", "int8"}
    lines = calibrate.calibration_lines(read, tmp_path / "own.json")
    assert lines[0].startswith("dense ")


def test_a_folder_gets_a_file(tmp_path, monkeypatch):
    alike = {"round_s": 1e-4, "processor_s": 1e-5, "byte_s": 1e-9}
    monkeypatch.setattr(calibrate, "_exchange_between", lambda number: alike)
    found, path = calibrate.calibrate(tmp_path / "folder", lambda line: None, quick=True)
    assert path == tmp_path / "folder" / "calibration.json"
    assert load_calibration(path) == found
    assert found.exchange.peer_s == 0.0
    assert found.wires["int8"] > found.wires["float32"]
