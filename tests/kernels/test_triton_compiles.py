"""Every Triton kernel compiles for a GPU, with what the checks launch it with; no GPU is needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreted import interpreter_paths, needs_triton

HERE = Path(__file__).parent
SCRIPTS = sorted(HERE.rglob("check_*triton.py"))


def run(tmp_path, *words, **environment):
    environment = {
        **os.environ,
        "PYTHONPATH": interpreter_paths(),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        **environment,
    }
    words = [sys.executable, HERE / "launches.py", *words]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
@pytest.mark.slow
def test_all_kernels_compile_as_the_checks_launch_them(tmp_path):
    recorded = []
    for number, script in enumerate(SCRIPTS):
        file = tmp_path / str(number)
        run(tmp_path, "record", file, script, TRITON_INTERPRET="1")
        recorded += file.read_text().splitlines()
    (tmp_path / "all").write_text("\n".join(recorded))
    found = json.loads(run(tmp_path, "compile", tmp_path / "all"))
    assert found == {"missing": [], "flaws": []}


BROKEN = """
import triton
import triton.language as tl

@triton.jit
def broken_kernel(numbers, num, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(numbers + place, {"of": 2.0}["of"], mask=place < num)
"""
LAUNCH = """
import torch
from broken import broken_kernel

numbers = torch.zeros(4)
broken_kernel[(1,)](numbers, 3, BLOCK=4)
assert numbers.tolist() == [2.0, 2.0, 2.0, 0.0]
"""


@needs_triton
def test_a_kernel_that_only_the_interpreter_accepts_is_found(tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "check.py").write_text(LAUNCH)
    paths = os.pathsep.join([interpreter_paths(), str(tmp_path)])
    file = tmp_path / "recorded"
    run(tmp_path, "record", file, tmp_path / "check.py", TRITON_INTERPRET="1")
    found = json.loads(run(tmp_path, "compile", file, PYTHONPATH=paths))
    assert len(found["flaws"]) == 1
    assert found["flaws"][0].startswith("broken_kernel {'numbers': '*fp32', 'num': 'i32'")
    assert "update_rows_kernel" in found["missing"]


OUTSIDE = """
import torch
import triton
import triton.language as tl
from interpreted import mend_interpreter

@triton.jit
def copy_kernel(numbers, out, num, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(numbers + place, mask=place < num), mask=place < 4)

mend_interpreter()
numbers, out = torch.arange(5.0), torch.zeros(4)
copy_kernel[(1,)](numbers[:4], out, 4, BLOCK=8)
assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
copy_kernel[(1,)](numbers[:4], out, 5, BLOCK=8)
"""


@needs_triton
def test_a_kernel_that_reads_beyond_its_tensors_is_found(tmp_path):
    script = tmp_path / "outside.py"
    script.write_text(OUTSIDE)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": interpreter_paths()}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.stderr.endswith(
        "AssertionError('a kernel reads or writes outside of its tensors')\n"
    )
    assert ", 5, BLOCK" in done.stderr
