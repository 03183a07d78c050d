"""Shapes in signatures are checked while tests run."""

import gc
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

if importlib.util.find_spec("beartype"):  # else tests run without these checks
    import shape_checks

    shape_checks.install(["outsize", "benchmarks"])

# Tests work on tiny tensors, for which a second thread only costs; subprocesses inherit this.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
# No test asks a hub for a model; libraries of texts read this once, when they are imported.
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

REPOSITORY = Path(__file__).parent.parent

# The same examples in every run, so that no change fails by what another has left to be found; new
# ones where they are asked for. A busy machine is no reason to fail either.
hypothesis.settings.register_profile("known", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", derandomize=False, deadline=None)
hypothesis.settings.load_profile("explore" if os.environ.get("OUTSIZE_EXPLORE") else "known")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """What a test draws without a generator of its own is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """As users run it: signatures are not checked, so our own checks must speak."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked_shapes_if_compiling(request: pytest.FixtureRequest) -> None:
    """torch.compile would trace the checks too."""
    if "compiles" in request.node.name:
        request.getfixturevalue("unchecked_shapes")


@pytest.fixture
def shared_data() -> Path:
    """Real data sets beside the checkout, where there are any."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no folder of real data sets beside this checkout")
    return folder


def pytest_collection_finish() -> None:
    """Collections of garbage need not look again at what was imported until here."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a device this machine lacks are skipped with that reason."""
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
