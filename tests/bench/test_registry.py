"""Benchmarks by name: what is here, and where the others are."""

import re
from dataclasses import replace
from importlib import import_module

import pytest

from outsize.bench import BENCHMARKS, run_benchmark
from outsize.bench.calibrate import ABOUT
from outsize.bench.registry import MOVED
from outsize.bench.runner import Benchmark, measure, write_results
from outsize.errors import ConfigError


def test_a_benchmark_has_the_name_and_command_it_is_listed_under():
    for name, benchmark in BENCHMARKS.items():
        assert (benchmark.name, benchmark.command) == (name, f"outsize bench {name}")
    listed = run_benchmark("list", quiet=True)["benchmarks"]
    assert listed == {name: each.about for name, each in BENCHMARKS.items()} | {"calibrate": ABOUT}


@pytest.mark.parametrize("name", MOVED)
def test_a_name_that_moved_is_refused_with_the_command_that_runs_it(name):
    with pytest.raises(ConfigError, match=re.escape(f"in a checkout run: {MOVED[name]}")) as caught:
        run_benchmark(name)
    assert len(str(caught.value).splitlines()) == 1
    module = import_module(MOVED[name].removeprefix("python -m "))
    assert (module.BENCHMARK.name, module.BENCHMARK.command) == (name, MOVED[name])


def test_results_and_their_page_are_written_together(tmp_path):
    write_results(tmp_path / "speed", {"seconds": 1}, "old")
    with pytest.raises(UnicodeEncodeError):
        write_results(tmp_path / "speed", {"seconds": 2}, "no text: \ud800")
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"speed.json": '{\n "seconds": 1\n}\n', "speed.md": "old"}


def test_a_device_reaches_the_benchmark_that_can_choose_it(tmp_path):
    def run(quick, say, device="cpu"):
        return {"ran_on": device}

    either = Benchmark("either", "outsize bench either", "", run, lambda results: "", run_on=run)
    results = measure(either, tmp_path, quiet=True, device="cpu")
    assert (results["ran_on"], results["command"]) == ("cpu", "outsize bench either --device cpu")
    assert (tmp_path / "either-cpu.json").exists()


def test_a_device_that_cannot_be_chosen_is_refused(monkeypatch):
    fixed = Benchmark("fixed", "", "", lambda quick, say: {}, lambda results: "")
    with pytest.raises(ConfigError, match="has no choice of device"):
        measure(fixed, quiet=True, device="cpu")
    either = replace(fixed, run_on=lambda quick, say, device: {})
    with pytest.raises(ConfigError, match="must be cpu or cuda, but got 'tpu'"):
        measure(either, quiet=True, device="tpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="no usable CUDA device"):
        measure(either, quiet=True, device="cuda")
    with pytest.raises(ConfigError, match="the whole machine"):
        run_benchmark("calibrate", quiet=True, device="cpu")
