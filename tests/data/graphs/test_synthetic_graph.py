"""A synthetic graph has the planted structure, and no model beats its best accuracy."""

import math
from dataclasses import replace

import numpy as np
import pytest

from outsize.data import DATA, GRAPH_DATA, SyntheticGraphConfig
from outsize.errors import ConfigError, DataError


def edges_of(data):
    relation = data.graph.relations["edge"]
    targets = np.repeat(np.arange(len(relation.starts) - 1), np.diff(relation.starts))
    return relation.sources.astype(np.int64), targets


@pytest.fixture(scope="module")
def clean():
    """A graph whose labels are its blocks."""
    return SyntheticGraphConfig(noise=0.0, homophily=0.5).build()


def test_it_is_registered_as_graph_data():
    assert DATA["synthetic-graph"] is GRAPH_DATA["synthetic-graph"] is SyntheticGraphConfig


def test_edges_are_undirected_distinct_and_sorted_without_self_loops(clean):
    sources, targets = edges_of(clean)
    pairs = set(zip(sources.tolist(), targets.tolist(), strict=True))
    assert len(pairs) == len(sources)
    assert all((target, source) in pairs for source, target in pairs)
    assert (sources != targets).all()
    assert (np.diff(sources)[np.diff(targets) == 0] > 0).all()


def test_degrees_and_classes_are_as_asked(clean):
    sources, targets = edges_of(clean)
    classes = clean.labels.classes
    assert np.bincount(classes).tolist() == [1_000] * 10
    assert (classes[sources] == classes[targets]).mean() == pytest.approx(0.5, abs=0.01)
    degrees = np.diff(clean.graph.relations["edge"].starts)
    assert degrees.mean() == pytest.approx(20, rel=0.03)


@pytest.mark.parametrize("exponent", [2.5, 4.0])
def test_degrees_follow_the_power_law(exponent):
    config = SyntheticGraphConfig(num_nodes=20_000, num_classes=2, exponent=exponent)
    degrees = np.diff(config.build().graph.relations["edge"].starts)
    # The number of nodes with at least degree d falls as d^−(exponent − 1).
    few, many = (degrees >= 20).sum(), (degrees >= 40).sum()
    assert math.log(few / many) / math.log(2) == pytest.approx(exponent - 1, abs=0.25)


@pytest.mark.parametrize(
    "settings",
    [{}, {"words_per_node": 5}, {"homophily": 0.02}, {"homophily": 1.0}, {"mean_degree": 3}],
)
def test_the_best_accuracy_is_that_of_the_most_probable_label_given_all_blocks(settings):
    config = SyntheticGraphConfig(**{"noise": 0.2, "mean_degree": 8, **settings})
    data, blocks = config.build(), replace(config, noise=0.0).build().labels.classes
    votes = np.zeros((config.num_nodes, 10))
    sources, targets = edges_of(data)
    odds = math.log(max(config.homophily, 1e-9) / max((1 - config.homophily) / 9, 1e-9))
    np.add.at(votes, (targets, blocks[sources]), odds)
    if config.words_per_node:
        words = data.graph.nodes["node"].attributes["words"].values.reshape(config.num_nodes, -1)
        signal = math.log(1 + 10 * config.word_signal / (1 - config.word_signal))
        np.add.at(votes, (np.arange(config.num_nodes)[:, None], words % 10), signal)
    votes += np.random.default_rng(0).random(votes.shape) * 1e-6  # ties are broken at random
    test = data.labelled["test"]
    accuracy = (votes[test].argmax(axis=1) == data.labels.classes[test]).mean()
    best = data.labels.best_accuracy
    assert best <= 0.8
    assert accuracy == pytest.approx(best, abs=4 * math.sqrt(best * (1 - best) / len(test)))


def test_without_edges_the_best_accuracy_is_chance():
    best = SyntheticGraphConfig(mean_degree=0, num_nodes=100, num_classes=5).build()
    assert best.labels.best_accuracy == pytest.approx(0.2)
    assert best.graph.relations["edge"].num_edges == 0


def test_labels_differ_from_blocks_with_the_probability_of_the_noise(clean):
    noisy = SyntheticGraphConfig(noise=0.3, homophily=0.5).build()
    differs = noisy.labels.classes != clean.labels.classes
    assert differs.mean() == pytest.approx(0.3, abs=0.02)
    assert np.array_equal(edges_of(noisy)[0], edges_of(clean)[0])


def test_splits_are_disjoint_and_of_their_shares(clean):
    nodes = np.concatenate([clean.labelled[s] for s in ("train", "validation", "test")])
    assert sorted(nodes.tolist()) == list(range(10_000))
    assert len(clean.labelled["test"]) == pytest.approx(2_000, abs=150)


def test_the_seed_decides_everything():
    config = SyntheticGraphConfig(num_nodes=300, words_per_node=2)
    first, again, other = config.build(), config.build(), replace(config, seed=1).build()
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for mine, same in zip(edges_of(first), edges_of(again), strict=True):
        assert np.array_equal(mine, same)
    assert first.graph.relations["edge"].sources.tobytes() != (
        other.graph.relations["edge"].sources.tobytes()
    )


def test_words_belong_to_classes():
    config = SyntheticGraphConfig(num_nodes=2_000, words_per_node=6, noise=0, num_words=57)
    data = config.build()
    words = data.graph.nodes["node"].attributes["words"]
    assert words.num_ids == 57
    assert words.values.max() < 57
    owners = np.repeat(data.labels.classes, 6)
    assert (words.values % 10 == owners).mean() == pytest.approx(0.3 + 0.7 / 10, abs=0.02)


def test_links_can_be_held_out():
    from outsize.data import LinkSplit

    config = SyntheticGraphConfig(num_nodes=1_000, links=LinkSplit(validation=0.1, test=0.2))
    data = config.build()
    graph = set(zip(*(part.tolist() for part in edges_of(data)), strict=True))
    shares = {split: links.shape[1] for split, links in data.links.items()}
    assert shares["test"] / sum(shares.values()) == pytest.approx(0.2, abs=0.02)
    assert data.link_relation == "edge"
    for split, links in data.links.items():
        for source, target in links.T.tolist():
            assert ((source, target) in graph) == (split == "train") == ((target, source) in graph)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_classes": 1}, "num_classes"),
        ({"num_nodes": 3}, "num_nodes"),
        ({"exponent": 2.0}, "exponent"),
        ({"homophily": 1.5}, "homophily"),
        ({"mean_degree": math.inf}, "mean_degree"),
        ({"test": 1.0}, "validation and test"),
        ({"words_per_node": 3, "num_words": 4}, "num_words"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        SyntheticGraphConfig(**settings)


def test_a_split_without_nodes_is_an_error():
    with pytest.raises(DataError, match="no node is in the"):
        SyntheticGraphConfig(num_nodes=3, num_classes=2).build()


def test_a_graph_needs_the_memory_it_states():
    config = SyntheticGraphConfig(num_nodes=20_000)
    assert sum(config.memory_needs().values()) > config.build().graph.relations["edge"].num_edges
