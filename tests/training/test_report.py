import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

import outsize
from outsize.reporting.quantities import format_bytes
from outsize.spec import MemoryUse
from outsize.training.config import RunConfig
from outsize.training.report import curve_svg, memory_svg
from outsize.training.strict_toml import decode

SMALL = {
    "data": {"num_train": 600, "num_validation": 200, "num_test": 200, "largest_vocabulary": 100},
    "train": {"batch_size": 100, "validate_every": 2, "log_every": 1},
}


class Page(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "xlink:href") and v]

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "a <run>"
    outsize.train(decode(RunConfig, SMALL, "test"), out, quiet=True)
    return Page((out / "report.html").read_text())


def test_the_report_is_one_file_with_nothing_to_download(page):
    assert not [link for link in page.links if not link.startswith("#")]
    assert page.opened.count("svg") == 3


def test_the_report_shows_results_configuration_and_environment(page):
    text = " ".join(page.words)
    for word in ("test log loss", "above Bayes", "embedding memory", "batch_size = 100", "torch",
                 "a <run>", "normalized_entropy"):  # fmt: skip
        assert word in text


def test_curves_draw_each_split_and_the_best_reachable_value():
    lines = [
        {"step": 1, "split": "train", "loss": 0.7},
        {"step": 2, "split": "validation", "loss": 0.6, "bayes_loss": 0.4, "auc": None},
    ]
    words = "".join(ET.fromstring(curve_svg(lines, "loss", "log loss")).itertext())
    drawn = curve_svg(lines, "loss", "log loss")
    for label in ("train", "validation", "best reachable (Bayes)"):
        assert label in drawn or label in words
    assert "test" not in words
    assert ET.fromstring(curve_svg(lines, "auc", "AUC")) is not None


def test_many_tables_are_summed_up():
    use = MemoryUse(1, {"cpu": {"parameters": 4, "index": 0, "optimizer": 0, "cache": 0}})
    drawn = memory_svg({f"t{i}": use for i in range(100)})
    assert "85 others" in drawn


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (23_400_000, "23.4 MB"), (2e15, "2000.0 TB")]
)
def test_sizes_are_for_people(size, text):
    assert format_bytes(size) == text
