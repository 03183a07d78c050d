import pytest

from outsize.compare import Grid, compare
from outsize.training import RunConfig
from outsize.training.strict_toml import decode

WRITE_REPORT = "outsize.training.report.write_report"
SMALL = {
    "data": {
        "num_train": 600,
        "num_validation": 200,
        "num_test": 200,
        "num_dense": 2,
        "num_categorical": 3,
        "largest_vocabulary": 100,
    },
    "model": {"bottom": [8], "top": [8]},
    "embeddings": {"kind": "store", "dim": 4, "init_std": 0.1},
    "train": {"batch_size": 100, "validate_every": 3},
    "checkpoint": {"every": 2},
}


@pytest.fixture(scope="session")
def run():
    """A run of six steps whose largest table has 400 numbers."""
    return decode(RunConfig, SMALL, "test")


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch):
    """Cells without `report.html`: it is tested elsewhere, and drawing it takes longest."""
    monkeypatch.setattr(WRITE_REPORT, lambda *args: None)


@pytest.fixture(scope="session")
def done(grid, tmp_path_factory):
    """The folder of a finished comparison, and what it returned."""
    out = tmp_path_factory.mktemp("compare") / "a <comparison>"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WRITE_REPORT, lambda *args: None)
        return out, compare(grid, out, workers=0, quiet=True)


@pytest.fixture(scope="session")
def grid(run):
    return Grid(run, ("hash", "ce-concat"), (16, 64), num_seeds=2)
