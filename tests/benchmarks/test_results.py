"""Results files are what today's commands write of their numbers."""

import importlib
import json
import re
from pathlib import Path

import pytest
from test_commands import REPOSITORY, SCRIPTS

from outsize.bench.registry import BENCHMARKS
from outsize.bench.runner import results_page

RESULTS = REPOSITORY / "benchmarks" / "results"
FILES = sorted(RESULTS.glob("*.json"))


def all_benchmarks():
    modules = map(importlib.import_module, sorted(SCRIPTS))
    found = [module.BENCHMARK for module in modules if hasattr(module, "BENCHMARK")]
    return {benchmark.name: benchmark for benchmark in [*found, *BENCHMARKS.values()]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_command_of_every_file_exists(path):
    command = json.loads(path.read_text()).get("command")
    if command is None:  # `outsize compare` writes the configuration instead
        assert path.stem.startswith("compare-")
        return
    written = re.match(r"python -m (\S+)|outsize bench (\S+)|python -c '(.*)'", command)
    assert written, command
    if written[3]:
        compile(written[3], "command", "exec")
    else:
        assert written[1] in SCRIPTS or written[2] in BENCHMARKS
    assert f"`{command}`" in path.with_suffix(".md").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_page_is_what_the_benchmark_writes_of_its_numbers(path):
    name = re.sub("-(cpu|gpu)$", "", path.stem)
    benchmark = all_benchmarks().get(name)
    if benchmark is None:  # a script that is not a `Benchmark` has no table of JSON alone
        assert (RESULTS / f"{path.stem}.md").exists()
        return
    results = json.loads(path.read_text())
    assert results["command"].startswith(benchmark.command)
    page = results_page(f"{name}: {benchmark.about}", results, benchmark.table(results))
    assert path.with_suffix(".md").read_text() == page


def test_every_file_is_listed_and_every_listed_file_is_there():
    text = (RESULTS / "README.md").read_text()
    listed = set(re.findall(r"\]\(([\w-]+)\.md\)", text))
    assert listed == {path.stem for path in FILES}
    assert {Path(path).stem for path in RESULTS.glob("*.md")} - {"README"} == listed
