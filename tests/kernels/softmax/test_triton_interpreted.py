import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import outsize


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_triton_path_means_the_same_under_the_interpreter():
    script = Path(__file__).with_name("check_triton.py")
    source = str(Path(outsize.__file__).parent.parent)
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.stdout.endswith("all checks passed\n"), done.stderr[-3000:]


def test_triton_is_not_imported_before_it_is_used():
    code = (
        "import sys, torch; sys.modules.pop('triton', None);"
        "import outsize.kernels.softmax.draws as s;"
        "s.draw_from_softmax(torch.ones(1, 2), s.ScoredItems(torch.ones(3, 2), None,"
        " torch.zeros(3)), 1, torch.Generator());"
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
