"""The stop of the demo in which a retrieval model meets a cache."""

from importlib.resources import files
from pathlib import Path

from rich.console import Console

from outsize.demo import STOPS
from outsize.negatives import NegativeCacheConfig
from outsize.training import load_config

RUN = Path(str(files("outsize.demo") / "negatives.toml"))


def test_every_way_is_trained_and_shown(tmp_path):
    found = STOPS["negatives"](tmp_path / "stop", True, Console(quiet=True))["runs"]
    assert list(found) == ["in-batch", "in-batch-logq", "cache", "exact"]
    assert all(run["train_s"] > 0 for run in found.values())
    page = (tmp_path / "stop" / "report.html").read_text()
    assert "time of this stop" in page
    for name, run in found.items():
        assert 0 <= run["test"]["recall@20"] <= 1
        assert [step for step, _ in run["curve"]] == [10, 20]
        assert f'href="{name}/report.html"' in page
        assert (tmp_path / "stop" / name / "report.html").exists()
    assert found["cache"]["negatives"]["held"] == 100
    assert found["cache"]["negatives"]["staleness"] > 0


def test_the_room_says_what_its_run_file_does():
    config = load_config(RUN)
    assert config.data.num_items == 5_000
    assert config.train.batch_size == 32
    assert isinstance(config.negatives, NegativeCacheConfig)
    assert config.negatives.num_negatives == 8
