import subprocess
import sys
from pathlib import Path

from interpreted import needs_triton, run_interpreted


@needs_triton
def test_the_triton_path_means_the_same_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_triton.py"))


def test_triton_is_not_imported_before_it_is_used():
    code = (
        "import sys, torch; sys.modules.pop('triton', None);"
        "import outsize.kernels.softmax.draws as s;"
        "s.draw_from_softmax(torch.ones(1, 2), s.ScoredItems(torch.ones(3, 2), None,"
        " torch.zeros(3)), 1, torch.Generator());"
        "sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
