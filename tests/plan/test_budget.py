"""Ways to fit a run into a memory budget."""

import tomllib

import pytest
from planned_runs import CLICKS, make_config

from outsize.errors import ConfigError
from outsize.plan import Planner
from outsize.plan.budget import read_size, slot_bytes, ways_to_fit
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode

LARGE = ("data.largest_vocabulary=100_000", "embeddings.dim=32", "data.num_train=400",
         "data.num_clusters=4", "train.steps=4")  # fmt: skip


@pytest.fixture(scope="module")
def ways():
    """Ways to fit rows of some megabytes on two ranks, with room for a part of them besides."""
    planner = Planner(make_config(CLICKS, *LARGE), 2, sample_steps=4)
    whole = planner.plan()
    planner.limit_bytes = whole.peak.process + whole.peak.counted * 2 // 3
    return planner, ways_to_fit(planner, planner.plan())


def test_every_way_fits(ways):
    planner, found = ways
    assert planner.plan().fits is False
    assert [way.title.split()[0] for way in found] == ["rows", "rows", "cce"]
    assert all(way.plan.fits for way in found)


def test_the_cache_takes_the_memory_that_is_left(ways):
    planner, (_, cached, _) = ways
    share = cached.config.embeddings.cache.share
    assert 0.01 < share < 0.5
    assert cached.plan.peak.total > 0.9 * planner.limit_bytes
    size = (
        share * sum(spec.num_rows for spec in planner.specs) * slot_bytes(cached.config.embeddings)
    )
    assert cached.plan.memory[0].bytes_of("cache") == pytest.approx(size, rel=0.25)


def test_lines_can_be_pasted_into_the_run_file(ways):
    _, found = ways
    for way in found:
        tree = tomllib.loads(way.lines)
        assert decode(RunConfig, {**CLICKS, **tree}, "test").embeddings == way.config.embeddings


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2_000_000_000), ("1.5 GiB", 1_610_612_736), ("512MB", 512_000_000), ("64k", 64_000),
     ("123_456", 123_456)],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "two", "-1GB", "1XB", "0"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ConfigError, match="memory"):
        read_size(text)
