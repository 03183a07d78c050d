"""Which versions of Triton are used; stand-ins have nothing but a version."""

import os
import subprocess
import sys

import pytest
from interpreted import interpreter_paths

ASK = "from outsize.kernels.available import has_triton; print(has_triton())"


@pytest.mark.parametrize(
    ("version", "is_used"),
    [("3.2.0", False), ("3.3.1", True), ("3.6.0+git1234", True), ("3.10.0", True)],
)
def test_triton_is_used_from_the_version_on_that_compiles_the_kernels(tmp_path, version, is_used):
    package = tmp_path / "triton"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}")
    paths = os.pathsep.join([str(tmp_path), interpreter_paths()])
    done = subprocess.run(
        [sys.executable, "-c", ASK], env={**os.environ, "PYTHONPATH": paths}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"{is_used}\n"
