"""The stop of the demo in which two processes share rows."""

from importlib.resources import files
from pathlib import Path

import pytest
from rich.console import Console

from outsize.demo import STOPS
from outsize.demo.cache_stop import summarize, train_on_ranks
from outsize.errors import LostRanksError
from outsize.training import load_config
from outsize.training.run_folder import RunFolder
from outsize.training.store_config import CacheConfig

RUN = Path(str(files("outsize.demo") / "cache.toml"))
REPOSITORY = Path(__file__).parent.parent.parent


def line(split, **values):
    counts = dict.fromkeys(("sent_ids", "sent_clocks", "sent_rows", "sent_gradients"), 1)
    return {"step": 1, "split": split, **counts, "hit_rate": 0.5, "largest_lag": None, **values}


def test_what_a_run_sent_includes_what_the_last_flush_did():
    found = summarize(
        [
            line("train", largest_lag=3, hit_rate=0.25),
            line("train", sent_rows=10),
            {"step": 1, "split": "test", "auc": 0.7},
            line("rows", sent_gradients=100, hit_rate=0.0),
        ]
    )
    assert found == {
        "sent_bytes": {"ids": 3, "clocks": 3, "rows": 12, "gradients": 102},
        "hit_rate": 0.5,
        "largest_lag": 3,
        "test": {"auc": 0.7},
    }


def test_a_cache_sends_less_and_rounding_less_still(tmp_path):
    found = STOPS["cache"](tmp_path / "stop", True, Console(quiet=True))["runs"]
    sent = [sum(run["sent_bytes"].values()) for run in found.values()]
    assert list(found) == ["synchronous", "cache", "cache-int8"]
    assert sent[0] > sent[1] > sent[2]
    assert found["cache"]["hit_rate"] > 0
    assert 0 <= found["cache"]["largest_lag"] <= 100
    assert all(run["train_s"] > 0 for run in found.values())
    page = (tmp_path / "stop" / "report.html").read_text()
    assert "time of this stop" in page
    for mode in found:
        assert f'href="{mode}/report.html"' in page
        assert (tmp_path / "stop" / mode / "report.html").exists()
        assert RunFolder(tmp_path / "stop" / mode).metrics()[-1]["split"] == "rows"


def test_the_room_says_what_its_run_file_does():
    assert load_config(RUN).embeddings.cache == CacheConfig(0.1, 100.0, 10.0)


def test_processes_that_fail_say_why_in_one_line(tmp_path):
    with pytest.raises(LostRanksError) as caught:
        for _ in train_on_ranks(RUN, ["train.device=toaster"], tmp_path / "run"):
            pass
    text = str(caught.value)
    assert "\n" not in text
    assert "train.device = 'toaster' is not a device" in text
    assert "toaster" in (tmp_path / "run.log").read_text()


def test_the_readme_names_every_room_of_the_demo():
    readme = (REPOSITORY / "README.md").read_text()
    for stop in STOPS:
        assert f"**{stop}**" in readme
