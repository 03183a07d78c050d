"""Search while a model goes on learning: cases with an obvious answer."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.negatives.continuous_results import table, write_plot
from benchmarks.negatives.continuous_search import NUM_VERSIONS, POLICIES, World, grid, simulate
from benchmarks.negatives.text_towers import Bags, Lesson, Texts, train_versions


def make_world(step):
    """Items that move by `step` from version to version, and queries near some of them."""
    generator = torch.Generator().manual_seed(0)
    items = [F.normalize(torch.randn(60, 8, generator=generator), dim=1)]
    for _ in range(NUM_VERSIONS):
        moved = items[-1] + step * torch.randn(60, 8, generator=generator)
        items.append(F.normalize(moved, dim=1))
    wanted = torch.arange(0, 60, 3)
    queries = [F.normalize(vectors[wanted], dim=1) for vectors in items]
    popularity = torch.ones(len(wanted), dtype=torch.float64) / len(wanted)
    return World(items, queries, wanted, popularity)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_that_stands_still_costs_nothing(tmp_path, policy):
    found = simulate(make_world(0.0), POLICIES[policy], 0.1, 0, tmp_path / "index", 10)
    assert found["recall"] == found["full"] == [1.0] * NUM_VERSIONS
    assert found["overlap"] == [1.0] * NUM_VERSIONS


def test_everything_encoded_again_is_what_it_is_compared_with(tmp_path):
    world = make_world(1.0)
    found = simulate(world, POLICIES["at random"], 1.0, 0, tmp_path / "all", 10)
    assert found["recall"] == found["full"]
    assert found["overlap"] == [1.0]
    assert found["encoded"] == [1.0] * NUM_VERSIONS
    stale = simulate(world, POLICIES["at random"], 0.0, 0, tmp_path / "none", 10)
    assert stale["overlap"][0] < 0.9
    assert stale["encoded"] == [0.0] * NUM_VERSIONS


def test_a_model_goes_on_learning_from_version_to_version():
    texts = [f"word{i % 9} word{i % 7} name{i}" for i in range(80)]
    data = Texts(Bags.of(texts), Bags.of(texts), torch.ones(80, dtype=torch.bool))
    rows = torch.arange(80)
    lessons = [Lesson(rows, 3, 1e-2), Lesson(rows, 3, 1e-2)]
    vectors = [m.encode(m.items, data.items, rows) for m in train_versions(data, lessons, 0, 16)]
    assert len(vectors) == 2
    assert not torch.allclose(*vectors)
    torch.testing.assert_close(vectors[0].norm(dim=1), torch.ones(80))


def test_the_table_and_the_plot_hold_every_policy(tmp_path):
    cells = []
    for setting in ("settled", "early"):
        for policy, share in grid(setting):
            numbers = dict.fromkeys(
                ("recall", "full", "recall_as_asked", "full_as_asked", "overlap",
                 "overlap_as_asked", "encoded", "drift"), [0.5] * NUM_VERSIONS,
            )  # fmt: skip
            cells.append(
                {"setting": setting, "policy": policy, "share": share, "seed": 0} | numbers
            )
    results = {"cells": cells, "num_items": 60}
    page = table(results)
    write_plot(results, tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    for policy in POLICIES:
        assert f"| {policy} | 10% | 50.0% | 0.0000 |" in page
    assert "<svg" in drawn
