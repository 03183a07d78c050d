"""Mutation testing of the parts that are easiest to get wrong without noticing.

    python -m benchmarks.mutation.run [--sample 200] [--seed 0] [--jobs N] [--work DIR] [--out DIR]

Tests first run once, and the lines that each of them executes are recorded. Then a seeded sample of
mutants is taken, which changes only where the source does. Each mutant runs in a copy of the
repository against the tests that execute its lines, the fastest first, until one fails or hangs. A
mutant that no test notices survives. `--work` keeps what is finished: a second call goes on where
the first stopped.
Known survivors are listed with a reason in `benchmarks/mutation/survivors.toml`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.mutation.mutants import Mutant, mutants_of
from benchmarks.runner import write_page
from outsize.files import write_text_atomically

ROOT = Path(__file__).parents[2]
TARGETS = (
    "src/outsize/stores/cached.py",
    "src/outsize/stores/cop*.py",
    "src/outsize/negatives/cache/*.py",
    "src/outsize/negatives/ways/cache*.py",
    "src/outsize/tables/c*_table.py",
    "src/outsize/tables/cce.py",
    "src/outsize/tables/reclustering.py",
    "src/outsize/training/loop*.py",
)
TESTS = (
    "tests/stores", "tests/negatives", "tests/tables", "tests/training", "tests/contracts",
    "tests/testing", "tests/ranks", "tests/test_collection.py", "tests/test_checkpoint.py",
    "tests/test_optimizers.py", "tests/benchmarks/het", "tests/benchmarks/negatives",
)  # fmt: skip
_COPIED = ("src", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
_MOST_SECONDS = 240.0  # of tests per mutant, as measured without mutants


def main() -> None:
    """Run the sample and write its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, default=Path("mutants"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", action="store_true", help="run survivors of --work once more")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    every = [mutant for path in target_files() for mutant in mutants_of(ROOT, path)]
    sample = sampled(every, given.sample, given.seed)
    covered = covering_tests(given.work / "covered", given.jobs)
    rows = run_mutants(sample, covered, given)
    command = f"python -m benchmarks.mutation.run --sample {given.sample} --seed {given.seed}"
    title = "mutation: changes of the source that tests notice"
    facts = {"num_mutants": len(every), "rows": rows}
    write_page("mutation", title, command, table(facts), given.out, print, **facts)


def sampled(mutants: Sequence[Mutant], num: int, seed: int) -> list[Mutant]:
    """A random sample that stays the same, but for what changes, when the source does."""
    return sorted(mutants, key=lambda mutant: _digest(f"{seed} {mutant.name}"))[:num]


def target_files() -> list[str]:
    """The files to mutate, relative to the root."""
    found = {path for pattern in TARGETS for path in ROOT.glob(pattern)}
    return sorted(str(p.relative_to(ROOT)) for p in found if p.name != "__init__.py")


def covering_tests(work: Path, jobs: int) -> list[dict[str, Any]]:
    """Every test that passes and executes a target: its name, seconds, and lines by file."""
    if not work.exists():
        draft = work.with_name(f"{work.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        variables = {
            **_variables(ROOT),
            "MUTATION_FILES": ":".join(target_files()),
            "MUTATION_COVERED": str(draft.resolve()),
        }
        words = ["-p", "benchmarks.mutation.covering", "--numprocesses", str(jobs), *TESTS]
        subprocess.run(_pytest(*words), cwd=ROOT, env=variables, check=False)
        if not any(draft.iterdir()):
            raise SystemExit("no test passed: look at what pytest printed, and run this again")
        draft.rename(work)
    lines = [line for path in work.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def run_mutants(
    sample: Sequence[Mutant], covered: Sequence[Mapping[str, Any]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Run mutants in copies of the repository, several at a time; results in their order."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for job in range(given.jobs):
        copies.put(_copy(given.work / f"tree-{job}"))

    def run_one(mutant: Mutant) -> dict[str, Any]:
        kept = given.work / f"{_digest(mutant.name)[:16]}.json"
        if kept.exists():
            row = dict(json.loads(kept.read_text()))
            if row["end"] != "survived" or not given.again:
                return row
        tree = copies.get()
        try:
            row = _run(mutant, chosen_tests(mutant, covered), tree)
        finally:
            copies.put(tree)
        write_text_atomically(kept, json.dumps(row))
        print(f"{row['end']}: {row['name']}", file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(given.jobs) as pool:
        return list(pool.map(run_one, sample))


def chosen_tests(mutant: Mutant, covered: Sequence[Mapping[str, Any]]) -> list[tuple[str, float]]:
    """Tests that execute a line of the mutant, with their seconds; the fastest first.

    What runs at import is executed by every test of that file.
    """
    lines = set(range(mutant.lines[0], mutant.lines[1] + 1))
    found = [
        (row["test"], row["seconds"])
        for row in covered
        if mutant.path in row["lines"]
        and (mutant.at_import or lines & set(row["lines"][mutant.path]))
    ]
    return sorted(found, key=lambda test: (test[1], test[0]))


def table(results: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    rows = results["rows"]
    reasons = known_survivors()
    parts = [
        f"A seeded sample of {len(rows)} of {results['num_mutants']:,} mutants. Each ran against "
        'the tests that execute its lines. "Killed": a test failed, or hung.\n',
        "| file | mutants | killed | survived |",
        "|---|--:|--:|--:|",
    ]
    for path in dict.fromkeys(sorted(row["path"] for row in rows)):
        parts.append(_line(path, [row for row in rows if row["path"] == path]))
    parts.append(_line("**all**", rows))
    survived = [row for row in rows if row["end"] != "killed"]
    if survived:
        parts += ["\n| survivor | reason |", "|---|---|"]
        for row in survived:
            name = row["name"].replace("|", "\\|")
            parts.append(f"| `{name}` | {reasons.get(row['name'], 'not looked at yet')} |")
    return "\n".join(parts) + "\n"


def known_survivors() -> dict[str, str]:
    """Why mutants survive, by name."""
    path = Path(__file__).with_name("survivors.toml")
    found = tomllib.loads(path.read_text()) if path.exists() else {}
    return {row["mutant"]: row["reason"] for row in found.get("survivors", [])}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _line(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    killed = sum(row["end"] == "killed" for row in rows)
    return f"| {name} | {len(rows)} | {killed} ({killed / len(rows):.0%}) | {len(rows) - killed} |"


def _run(mutant: Mutant, tests: Sequence[tuple[str, float]], tree: Path) -> dict[str, Any]:
    """Run one mutant against tests."""
    row = {"name": mutant.name, "path": mutant.path, "line": mutant.lines[0]}
    chosen = list(_within(tests))
    if not chosen:
        return {**row, "end": "survived", "tests": 0}
    target = tree / mutant.path
    original = target.read_text()
    target.write_text(mutant.source)
    names, limits = tree / "chosen.txt", tree / "limits.json"
    names.write_text("".join(f"{name}\n" for name, _ in chosen))
    # Kernels may compile, and other mutants run beside this one.
    limits.write_text(json.dumps({name: 60 + 4 * seconds for name, seconds in chosen}))
    limit = 120 + 4 * sum(seconds for _, seconds in chosen)
    words = _pytest(
        "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "benchmarks.mutation.limits",
        f"@{names.name}",
    )  # fmt: skip
    variables = {**_variables(tree), "MUTATION_LIMITS": str(limits.resolve())}
    try:
        with subprocess.Popen(
            words, cwd=tree, env=variables, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as running:  # fmt: skip
            try:
                text, _ = running.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                text = "hung"
            finally:
                _kill(running)
    finally:
        target.write_text(original)
    text = text.replace(f"{tree.resolve()}/", "")
    end = "survived" if running.returncode == 0 else "killed"
    return {**row, "end": end, "tests": len(chosen), "last": text.strip().splitlines()[-1:]}


def _within(tests: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """As many of the tests as fit into the time for one mutant."""
    total = 0.0
    for name, seconds in tests:
        total += seconds
        if total > _MOST_SECONDS:
            return
        yield name, seconds


def _copy(tree: Path) -> Path:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in _COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


def _pytest(*words: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *words]


def _variables(tree: Path) -> dict[str, str]:
    paths = os.pathsep.join(str((tree / part).resolve()) for part in ("src", "."))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _kill(running: subprocess.Popen[str]) -> None:
    """End a test run and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


if __name__ == "__main__":
    main()
