"""Mutants change one thing each, and run against the tests that execute it."""

import ast
import json
import textwrap
from pathlib import Path

import processes

from benchmarks.mutation.mutants import mutants_of
from benchmarks.mutation.run import (
    ROOT,
    chosen_tests,
    known_survivors,
    sampled,
    table,
    target_files,
)

SOURCE = '''
"""A module with 1 number in its docstring."""


def first(values: list[int], most: int = 3) -> int | None:
    """Not mutated: 1 + 1."""
    assert most > 0
    if not values:
        raise ValueError(f"{1 + 1} values")
    total = 0
    for value in values:
        if value < most and value != 2:
            total += value
    values.clear()
    return None if total == 0 else min(total, most)
'''


def mutants(tmp_path, source=SOURCE):
    (tmp_path / "code.py").write_text(textwrap.dedent(source))
    return mutants_of(tmp_path, "code.py")


def test_every_mutant_is_one_change_that_parses(tmp_path):
    found = mutants(tmp_path)
    assert len({mutant.name for mutant in found}) == len(found)
    original = (tmp_path / "code.py").read_text()
    for mutant in found:
        ast.parse(mutant.source)
        assert mutant.source != original
        differing = [
            number
            for number, pair in enumerate(
                zip(original.splitlines(), mutant.source.splitlines(), strict=True), 1
            )
            if pair[0] != pair[1]
        ]
        assert differing == [mutant.lines[0]]


def test_operators_conditions_numbers_and_statements_change(tmp_path):
    changes = {(mutant.before, mutant.after) for mutant in mutants(tmp_path)}
    assert changes == {
        ("3", "4"),
        ("not values", "values"),
        ("0", "1"),
        ("value < most and value != 2", "value < most or value != 2"),
        ("value < most", "value <= most"),
        ("value != 2", "value == 2"),
        ("2", "3"),
        ("total += value", "total -= value"),
        ("values.clear()", "pass"),
        (
            "None if total == 0 else min(total, most)",
            "min(total, most) if total == 0 else None",
        ),
        ("total == 0", "total != 0"),
        ("min(total, most)", "max(total, most)"),
    }


def test_a_sample_stays_when_the_source_grows(tmp_path):
    before = {mutant.name for mutant in sampled(mutants(tmp_path), 6, seed=0)}
    longer = SOURCE + "\n\ndef last(value):\n    return value + 1\n"
    after = {mutant.name for mutant in sampled(mutants(tmp_path, longer), 6, seed=0)}
    assert len(before) == 6
    assert all("last" in name for name in after - before)
    assert {mutant.name for mutant in sampled(mutants(tmp_path), 6, seed=1)} != before


def test_all_targets_exist_and_have_mutants_that_parse():
    files = target_files()
    assert {"src/outsize/stores/cached.py", "src/outsize/training/loop.py"} <= set(files)
    for mutant in mutants_of(ROOT, "src/outsize/stores/cached.py"):
        ast.parse(mutant.source)


def test_tests_that_execute_a_line_are_chosen_the_fastest_first(tmp_path):
    mutant = next(m for m in mutants(tmp_path) if m.before == "values.clear()")
    line = mutant.lines[0]
    covered = [
        {"test": "slow", "seconds": 2.0, "lines": {"code.py": [line]}},
        {"test": "elsewhere", "seconds": 0.1, "lines": {"code.py": [line + 1]}},
        {"test": "fast", "seconds": 0.5, "lines": {"code.py": [line - 1, line]}},
    ]
    assert chosen_tests(mutant, covered) == [("fast", 0.5), ("slow", 2.0)]


def test_what_runs_at_import_is_tried_on_all_tests_of_its_file(tmp_path):
    source = "MOST = 3\n\n\ndef first(least=4):\n    return 5\n"
    by_change = {mutant.before: mutant for mutant in mutants(tmp_path, source)}
    assert {number: by_change[number].at_import for number in "345"} == {
        "3": True, "4": True, "5": False
    }  # fmt: skip
    covered = [
        {"test": "here", "seconds": 1.0, "lines": {"code.py": [5]}},
        {"test": "elsewhere", "seconds": 1.0, "lines": {"other.py": [1]}},
    ]
    assert chosen_tests(by_change["3"], covered) == [("here", 1.0)]


def test_lines_of_a_test_and_of_its_shared_fixtures_are_recorded(tmp_path):
    (tmp_path / "code.py").write_text("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    (tmp_path / "test_code.py").write_text(
        "import code_py as code, pytest\n\n\n@pytest.fixture(scope='module')\n"
        "def shared():\n    return code.one()\n\n\n"
        "def test_a(shared):\n    assert shared == 1\n\n\n"
        "def test_b(shared):\n    assert code.two() == 2\n\n\n"
        "def test_c():\n    assert code.two() == 1\n"
    )
    (tmp_path / "code.py").rename(tmp_path / "code_py.py")
    words = ["-m", "pytest", "-q", "-p", "benchmarks.mutation.covering", "-p", "no:cacheprovider",
             "--rootdir", tmp_path, tmp_path / "test_code.py"]  # fmt: skip
    variables = {
        "MUTATION_FILES": "code_py.py",
        "MUTATION_COVERED": str(tmp_path),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
    }
    done = processes.run(*words, cwd=tmp_path, env=variables)
    assert done.returncode == 1, done.stdout
    (written,) = Path(tmp_path).glob("*.jsonl")
    rows = {
        row["test"].split("::")[1]: row["lines"]["code_py.py"]
        for row in map(json.loads, written.read_text().splitlines())
    }
    assert rows == {"test_a": [2], "test_b": [2, 6]}, "test_c failed"


def test_the_table_counts_the_killed_and_names_survivors_with_their_reason(monkeypatch):
    rows = [
        {"name": "a.py f: 0 → 1", "path": "a.py", "end": "killed"},
        {"name": "a.py f: x | y → x & y", "path": "a.py", "end": "survived"},
    ]
    text = table({"rows": rows, "num_mutants": 10})
    assert "| a.py | 2 | 1 (50%) | 1 |" in text
    assert r"| `a.py f: x \| y → x & y` | not looked at yet |" in text


def test_every_known_survivor_is_still_a_mutant():
    names = {mutant.name for path in target_files() for mutant in mutants_of(ROOT, path)}
    assert known_survivors().keys() <= names


def test_a_test_that_hangs_ends_the_process(tmp_path):
    (tmp_path / "test_code.py").write_text(
        "import threading\n\n\ndef test_a():\n    pass\n\n\n"
        "def test_b():\n    threading.Event().wait()\n"
    )
    limits = tmp_path / "limits.json"
    limits.write_text(json.dumps({f"test_code.py::test_{name}": 1.0 for name in "ab"}))
    words = ["-m", "pytest", "-q", "-p", "benchmarks.mutation.limits", "-p", "no:cacheprovider",
             "--rootdir", tmp_path, tmp_path / "test_code.py"]  # fmt: skip
    variables = {"MUTATION_LIMITS": str(limits), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    done = processes.run(*words, cwd=tmp_path, env=variables)
    assert done.returncode == 1
    assert done.stdout == ".", "the first passed, and nothing came after the second began"
