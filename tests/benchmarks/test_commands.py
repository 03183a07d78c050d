"""Commands of benchmarks: those that are written exist, and each runs as it says."""

import importlib.util
import json
import re
from pathlib import Path

import processes
import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *REPOSITORY.glob("*.md"),
    *REPOSITORY.glob("docs/*.md"),
    REPOSITORY / "benchmarks" / "results" / "README.md",
    *REPOSITORY.glob("benchmarks/**/*.py"),
    *REPOSITORY.glob("src/outsize/bench/*.py"),
]
SCRIPTS = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__main__")
    for path in REPOSITORY.glob("benchmarks/*/*.py")
    if '__name__ == "__main__"' in path.read_text()
}
COMMAND = re.compile(r"python -m (benchmarks[\w.]*\w)")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_command_that_is_written_is_a_script(page):
    text = page.read_text().replace("python -m benchmarks.FOLDER.NAME", "")
    assert set(COMMAND.findall(text)) <= SCRIPTS
    old = re.findall(r"benchmarks/\w+\.py", text)
    assert all((REPOSITORY / path).exists() for path in old), "a script that moved"


@pytest.mark.parametrize("module", sorted(SCRIPTS))
def test_every_script_names_its_own_command_and_can_be_imported(module):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f"python -m {module}" in Path(spec.origin).read_text()
    importlib.import_module(module)


def test_a_script_runs_as_a_command_and_writes_its_results(tmp_path):
    words = ["-m", "benchmarks.cce.least_squares", "--quick", "--out", tmp_path]
    done = processes.run(*words, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (written,) = tmp_path.glob("*.json")
    results = json.loads(written.read_text())
    assert results["command"] == "python -m benchmarks.cce.least_squares --quick"
    assert written.with_suffix(".md").read_text().strip() in done.stderr
