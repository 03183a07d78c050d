"""The stop of the demo in which functions are searched by what they do."""

from importlib.resources import files
from pathlib import Path

from rich.console import Console

from outsize.demo import STOPS
from outsize.training import load_config

ORDER = list(STOPS)  # a test that leaves out stops for a while puts them back at the end


def test_a_model_is_trained_exported_and_asked(tmp_path):
    found = STOPS["search"](tmp_path / "stop", True, Console(quiet=True))
    assert ORDER[-1] == "search"
    assert found["num_items"] > 30
    assert 0 <= found["test"]["recall@10"] <= 1
    page = (tmp_path / "stop" / "report.html").read_text()
    for query, answers in found["answers"].items():
        assert query in page
        assert [answer["rank"] for answer in answers] == [1, 2, 3]
        assert all(answer["id"] in page for answer in answers)
    assert 'href="run/report.html"' in page
    assert (tmp_path / "stop" / "exported" / "config.json").exists()


def test_its_run_file_reads_the_standard_library():
    config = load_config(Path(str(files("outsize.demo") / "search.toml")))
    assert config.data.packages == ("stdlib",)
