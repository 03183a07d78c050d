"""Kernels are compiled once, shared by processes, and replaced by torch where numba fails."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from outsize.kernels import compiled as machinery
from outsize.kernels import openmp
from outsize.kernels.distinct.distinct import distinct
from outsize.kernels.threads import num_parts, run_parts

pytest.importorskip("numba")

_DISTINCT = """
import torch
from outsize.kernels.distinct.distinct import distinct
print(distinct(torch.arange(9000) % 7, 7).places is not None)
"""


@pytest.fixture
def fresh(monkeypatch):
    """As in a new process: nothing is compiled, shown or decided yet."""
    monkeypatch.setattr(machinery, "_modules", {})
    monkeypatch.setattr(machinery, "_shown", set())
    machinery.numba_problem.cache_clear()
    yield monkeypatch
    machinery.numba_problem.cache_clear()


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=True,
    )


def test_importing_the_package_imports_no_numba():
    found = run("import sys, outsize; outsize.RowAdagrad; print('numba' in sys.modules)")
    assert found.stdout == "False\n"


def test_code_on_disk_is_used_and_damaged_code_is_compiled_again(tmp_path, fresh, capsys):
    fresh.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    ids = torch.arange(9000) % 7
    message = "compiling kernels for this machine"
    assert distinct(ids, 7).places is not None
    assert message in capsys.readouterr().err
    codes = list(tmp_path.glob("*/*.nbc"))
    assert codes
    for damage, is_compiled in ((None, False), (b"no code", True)):
        if damage is not None:
            for code in codes:
                code.write_bytes(damage)
        machinery._modules.clear()
        machinery._shown.clear()
        assert distinct(ids, 7).places is not None
        assert (message in capsys.readouterr().err) == is_compiled


def test_several_processes_may_compile_at_once(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _DISTINCT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    said = [process.communicate() for process in started]
    assert [out for out, _ in said] == ["True\n"] * 2
    # one of them compiles, the other waits for it
    assert sum("compiling" in err for _, err in said) == 1


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("NUMBA_DISABLE_JIT", "1", "NUMBA_DISABLE_JIT is set"),
        ("numba", None, "numba cannot be imported"),
    ],
)
def test_without_numba_the_reason_is_shown_once_and_torch_works(fresh, capsys, name, value, reason):
    if value is None:
        fresh.setitem(sys.modules, name, None)
    else:
        import numba

        fresh.setattr(numba.config, "DISABLE_JIT", int(value))
    ids = torch.arange(9000) % 7
    for _ in range(2):
        found = distinct(ids, 7)
        assert found.places is None
        assert torch.equal(found.ids, torch.arange(7))
    said = capsys.readouterr().err
    assert said.count(reason) == 1
    assert len(said.splitlines()) == 1


def test_a_kernel_that_does_not_compile_falls_back_to_torch(fresh, capsys):
    kernels = machinery.compiled("distinct.distinct_numba")
    fresh.setattr(kernels.distinct_ids, "signature", "void(no such type)")
    machinery._modules.clear()
    assert distinct(torch.arange(9000) % 7, 7).places is None
    assert "numba cannot compile distinct.distinct_numba" in capsys.readouterr().err


def test_torch_may_be_asked_for(fresh, capsys):
    fresh.setenv("OUTSIZE_KERNELS", "torch")
    assert distinct(torch.arange(9000) % 7, 7).places is None
    assert capsys.readouterr().err == ""


def test_no_folder_to_write_to_is_said(fresh, capsys):
    fresh.setattr(machinery, "cache_folder", lambda: None)
    assert distinct(torch.arange(9000) % 7, 7).places is not None
    assert "set NUMBA_CACHE_DIR" in capsys.readouterr().err


def test_threads_may_run_kernels_at_once():
    ids = torch.arange(20_000) * 7919 % 1009
    expected = torch.unique(ids, return_inverse=True)
    wrong = []

    def work():
        for _ in range(5):
            found = distinct(ids, 1009)
            if not (
                torch.equal(found.ids, expected[0]) and torch.equal(found.inverse, expected[1])
            ):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_parts_run_on_several_threads_and_errors_are_raised():
    seen = []
    run_parts(lambda part, parts, x: seen.append((part, parts, x)), 3, "x")
    assert sorted(seen) == [(part, 3, "x") for part in range(3)]

    def fail(part, parts):
        if part == 1:
            raise ValueError("part 1")

    with pytest.raises(ValueError, match="part 1"):
        run_parts(fail, 2)
    assert num_parts(10, 100) == 1


ROWS = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
PLACES = np.random.default_rng(1).integers(50, size=1000)


def gathered(parts):
    """Rows that were gathered in so many parts."""
    out = np.full((1000, 5), np.nan, dtype=np.float32)
    run_parts(machinery.compiled("gather.gather_numba").gather_rows, parts, ROWS, PLACES, out)
    return out


@pytest.mark.skipif(openmp.addresses() is None, reason="torch has no OpenMP threads to use here")
def test_a_team_runs_every_part_also_with_fewer_threads_than_parts(monkeypatch):
    kernel = machinery.compiled("gather.gather_numba").gather_rows
    teams = []
    monkeypatch.setattr(
        kernel, "run_on_team", spied(kernel.run_on_team, lambda parts: teams.append(parts))
    )
    for parts in (2, 3, 7):
        np.testing.assert_array_equal(gathered(parts), ROWS[PLACES])
    assert teams == [2, 3, 7]


def spied(run, see):
    def with_spy(parts, *arguments):
        see(parts)
        run(parts, *arguments)

    return with_spy


def test_several_threads_may_start_teams_at_once():
    found = []
    threads = [
        threading.Thread(target=lambda: found.extend(gathered(3) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for out in found:
        np.testing.assert_array_equal(out, ROWS[PLACES])


def test_without_threads_of_torch_workers_run_the_parts(fresh, tmp_path):
    fresh.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    fresh.setattr(machinery, "addresses", lambda: None)
    kernel = machinery.compiled("gather.gather_numba").gather_rows
    fresh.setattr(kernel, "run_on_team", None)  # as before it was compiled
    np.testing.assert_array_equal(gathered(2), ROWS[PLACES])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads
def test_a_forked_child_runs_parts_though_its_parent_had_a_team():
    gathered(2)
    child = os.fork()
    if child == 0:
        os._exit(0 if (gathered(2) == ROWS[PLACES]).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking with threads
def test_a_forked_child_has_threads_of_its_own():
    run_parts(lambda part, parts: None, 2)
    child = os.fork()
    if child == 0:
        seen = []
        run_parts(lambda part, parts: seen.append(part), 2)
        found = distinct(torch.arange(9000) % 7, 7)
        os._exit(0 if sorted(seen) == [0, 1] and found.places is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
