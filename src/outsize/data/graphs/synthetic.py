"""A synthetic graph with planted classes and a known best accuracy.

Nodes fall into blocks of equal size. An edge starts in a random block, ends in the same one with
probability `homophily` and else in a random other one, and joins a node of each block that is drawn
by weight (the degree-corrected stochastic block model of Karrer and Newman). Weights follow a power
law that is cut off where two nodes would be joined more than once, so degrees do too. A node's
label is its block, or with probability `noise` a random other one.

**The best accuracy.** Given the blocks of all other nodes, the weights and the settings above, the
probability of each block of a node follows from its edges (and words) by Bayes' rule. The best
prediction is the most probable label. Its expected accuracy over the test nodes is
`NodeLabels.best_accuracy`: no model is better, except by the luck of a finite test set. A model
knows less, as it must find the blocks of other nodes itself, so it comes close only if nodes have
enough edges. Terms of the order of 1 / nodes are left out. From more than about a million scores,
test nodes times classes, the mean is over evenly spaced test nodes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.bounds import require_at_least, require_between
from outsize.data.click_data import SPLITS, Split
from outsize.data.encoding.ids import runs
from outsize.data.encoding.splits.base import cut, require_shares
from outsize.data.graphs.csr import EdgeRules, GroupedEdges, Pairs, group_edges
from outsize.data.graphs.graph import (
    Graph,
    GraphData,
    GraphDataConfig,
    IdBags,
    NodeLabels,
    NodeType,
    Relation,
)
from outsize.data.graphs.links import HeldOutLinks, LinkSplit
from outsize.errors import ConfigError, DataError
from outsize.hashing import derive_seed, uniform_at

_EDGES_PER_CHUNK = 1 << 19
_MAX_NODES, _MAX_EDGES = 1 << 31, 1 << 40
_MAX_SCORES = 1 << 20
_MAX_LOG_ODDS = 50.0


@dataclass(frozen=True)
class SyntheticGraphConfig(GraphDataConfig):
    """A synthetic graph; nodes have ids and, with `words_per_node`, a bag of words.

    Attributes:
        num_nodes: Number of nodes.
        num_classes: Number of classes.
        mean_degree: Mean number of neighbours, before repeated edges are merged.
        exponent: Of the power law of degrees, above 2; the larger, the more equal.
        homophily: Share of edges within a class.
        noise: Share of nodes whose label is not their block.
        words_per_node: Number of words per node; 0 for none.
        num_words: Number of different words; each belongs to one class.
        word_signal: Share of words drawn from those of the node's block; others are random.
        validation: Share of nodes in the validation set.
        test: Share of nodes in the test set.
        links: Edges to hold out for link prediction; by default none.
        seed: Seed of the graph.
    """

    num_nodes: int = 10_000
    num_classes: int = 10
    mean_degree: float = 20.0
    exponent: float = 2.5
    homophily: float = 0.7
    noise: float = 0.05
    words_per_node: int = 0
    num_words: int = 1_000
    word_signal: float = 0.3
    validation: float = 0.1
    test: float = 0.2
    links: LinkSplit | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_between(self, 2, 1 << 16, "num_classes")
        require_between(self, self.num_classes, _MAX_NODES, "num_nodes")
        require_at_least(self, 0, "mean_degree", "words_per_node", "num_words")
        if self.num_edges > _MAX_EDGES:
            raise ConfigError(f"mean_degree = {self.mean_degree} gives {self.num_edges:,} edges")
        require_between(self, 2.01, 1_000, "exponent")
        require_between(self, 0, 1, "homophily", "noise", "word_signal")
        require_shares(self.validation, self.test)
        if self.words_per_node and self.num_words < self.num_classes:
            raise ConfigError(
                f"num_words must be at least num_classes = {self.num_classes}, but got "
                f"{self.num_words}"
            )
        if self.links is not None and self.links.relation not in ("", "edge"):
            raise ConfigError(
                f"the only relation of a synthetic graph is 'edge', but links.relation is "
                f"{self.links.relation!r}"
            )

    @property
    def num_edges(self) -> int:
        """Number of edges that are drawn."""
        return round(self.num_nodes * self.mean_degree / 2)

    def build(self) -> GraphData:  # noqa: D102
        blocks = _Blocks(self)
        rules = EdgeRules()
        links: dict[Split, NDArray[np.int64]] = {}
        if self.links is None:
            edges = group_edges(blocks.chunks, self.num_nodes, self.num_nodes, rules)
        else:
            held_out = HeldOutLinks(blocks.chunks, self.links, undirected=True)
            edges = group_edges(held_out.training_chunks, self.num_nodes, self.num_nodes, rules)
            links = {"train": held_out.training_links(edges), **held_out.links()}
        attributes = {"words": blocks.words()} if self.words_per_node else {}
        labelled = self._split()
        best = blocks.best_accuracy(labelled["test"], edges, attributes.get("words"))
        names = tuple(f"class {number}" for number in range(self.num_classes))
        relation = Relation("node", "node", edges.starts, edges.sources)
        return GraphData(
            Graph({"node": NodeType(self.num_nodes, attributes)}, {"edge": relation}),
            hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest(),
            NodeLabels("node", blocks.labels(), names, best),
            labelled,
            links,
            "edge" if links else None,
        )

    def memory_needs(self) -> dict[str, int]:  # noqa: D102
        per_edge = 8 if self.links is None else 24
        return {
            f"data.num_nodes = {self.num_nodes:,}": 112 * self.num_nodes,
            f"data.mean_degree = {self.mean_degree:g} for {self.num_nodes:,} nodes":
                per_edge * self.num_edges,
            f"data.words_per_node = {self.words_per_node:,} for {self.num_nodes:,} nodes":
                8 * self.words_per_node * self.num_nodes,
        }  # fmt: skip

    def _split(self) -> dict[Split, NDArray[np.int64]]:
        uniform = _uniform(self.seed, "split", 0, self.num_nodes)
        assigned = cut(uniform, (1 - self.validation - self.test, 1 - self.test))
        labelled = {split: np.flatnonzero(assigned == i) for i, split in enumerate(SPLITS)}
        for split, nodes in labelled.items():
            if not len(nodes):
                raise DataError(
                    f"no node is in the {split} split of {self.num_nodes:,} nodes: raise num_nodes"
                )
        return labelled


class _Blocks:
    """Which block and weight each node has, and the edges drawn from them.

    Nodes have places, block by block and in a block by descending weight; a random permutation maps
    places to ids.
    """

    def __init__(self, config: SyntheticGraphConfig) -> None:
        self._config = config
        order = torch.Generator().manual_seed(derive_seed(config.seed, "nodes"))
        self._nodes = torch.randperm(config.num_nodes, generator=order).numpy()
        count = config.num_classes
        self._first = np.arange(count + 1) * config.num_nodes // count
        self._power_law = _PowerLaw(
            config.exponent,
            max(1.5, math.sqrt(config.num_nodes / max(1.0, config.mean_degree) / count)),
        )
        self.of_node = np.empty(config.num_nodes, np.int32)
        self.of_node[self._nodes] = np.repeat(np.arange(count), np.diff(self._first))

    def chunks(self) -> Iterator[Pairs]:
        """The edges, the same ones in each call."""
        for first in range(0, self._config.num_edges, _EDGES_PER_CHUNK):
            count = min(_EDGES_PER_CHUNK, self._config.num_edges - first)
            yield self._draw(first, count)

    def _draw(self, first: int, count: int) -> Pairs:
        config = self._config

        def uniform(name: str) -> NDArray[np.float64]:
            return _uniform(config.seed, name, first, count)

        block = _below(uniform("block"), config.num_classes)
        others = _below(uniform("other"), config.num_classes - 1)
        others += others >= block
        other = np.where(uniform("homophily") < config.homophily, block, others)
        return self._nodes_in(block, uniform("source")), self._nodes_in(other, uniform("target"))

    def _nodes_in(self, block: NDArray[np.int64], uniform: NDArray[np.float64]) -> Any:
        first, size = self._first[block], self._first[block + 1] - self._first[block]
        return self._nodes[first + _below(self._power_law.quantile(uniform), size)]

    def weights(self) -> NDArray[np.float64]:
        """The probability that an edge which ends in the block of a node ends there."""
        weights = np.empty(self._config.num_nodes)
        for first, stop in zip(self._first[:-1], self._first[1:], strict=True):
            shares = self._power_law.cumulative(np.linspace(0, 1, stop - first + 1))
            weights[self._nodes[first:stop]] = np.diff(shares)
        return weights

    def labels(self) -> NDArray[np.int64]:
        """The label of each node: its block, or another one with the probability `noise`."""
        config = self._config
        wrong = _uniform(config.seed, "noise", 0, config.num_nodes) < config.noise
        offset = _below(_uniform(config.seed, "label", 0, config.num_nodes), config.num_classes - 1)
        return np.where(wrong, (self.of_node + 1 + offset) % config.num_classes, self.of_node)

    def words(self) -> IdBags:
        """Words of each node; word w belongs to class w modulo the number of classes."""
        config = self._config
        count = config.num_nodes * config.words_per_node
        block = np.repeat(self.of_node.astype(np.int64), config.words_per_node)
        own = (config.num_words - 1 - block) // config.num_classes + 1  # words of that class
        uniform = _uniform(config.seed, "words", 0, count)
        signal = _uniform(config.seed, "word signal", 0, count) < config.word_signal
        values = np.where(
            signal,
            block + config.num_classes * _below(uniform, own),
            _below(uniform, config.num_words),
        )
        starts = np.arange(config.num_nodes + 1, dtype=np.int64) * config.words_per_node
        return IdBags(starts, values.astype(np.int32), config.num_words)

    def best_accuracy(
        self, nodes: NDArray[np.int64], edges: GroupedEdges, words: IdBags | None
    ) -> float:
        """See the module docstring."""
        config, count = self._config, self._config.num_classes
        nodes = nodes[:: -(-len(nodes) * count // _MAX_SCORES)]
        degrees = edges.starts[nodes + 1] - edges.starts[nodes]
        owner = np.repeat(np.arange(len(nodes)), degrees)
        neighbor = edges.sources[runs(edges.starts[nodes], degrees)]
        weights = self.weights()
        expected = 2 * config.num_edges / count * weights[nodes][owner] * weights[neighbor]
        # P(edge) = 1 − exp(−λ), P(no edge) = exp(−λ); blocks differ in the edges there are only
        inside = np.log(np.expm1(np.maximum(expected * config.homophily, 1e-300)))
        rate = (1 - config.homophily) / (count - 1)
        outside = np.log(np.expm1(np.maximum(expected * rate, 1e-300)))
        odds = np.clip(inside - outside, -_MAX_LOG_ODDS, _MAX_LOG_ODDS)
        scores = _sums(owner * count + self.of_node[neighbor], odds, len(nodes), count)
        if words is not None:
            owner = np.repeat(np.arange(len(nodes)), config.words_per_node)
            begin = words.starts[nodes]
            found = words.values[runs(begin, words.starts[nodes + 1] - begin)] % count
            own = (config.num_words - 1 - found) // count + 1
            share = np.maximum((1 - config.word_signal) / config.num_words, 1e-300)
            odds = np.minimum(np.log1p(config.word_signal / own / share), _MAX_LOG_ODDS)
            scores += _sums(owner * count + found, odds, len(nodes), count)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        probability = scores / scores.sum(axis=1, keepdims=True)
        wrong = config.noise / (count - 1)
        label = (1 - config.noise) * probability + wrong * (1 - probability)
        return float(label.max(axis=1).mean())


class _PowerLaw:
    """Weights x^−α for x from s to 1 + s, with s such that the largest is `most` times the mean.

    With α = 1 / (exponent − 1), nodes at equal distances in x have weights, and so degrees, whose
    distribution falls with the exponent.
    """

    def __init__(self, exponent: float, most: float) -> None:
        self._power: float = 1 - 1 / (exponent - 1)  # 1 − α
        low, high = 1e-18, 1e6
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._largest(middle) > most else (low, middle)
        self._shift = high
        self._low = self._shift**self._power
        self._width = (1 + self._shift) ** self._power - self._low

    def _largest(self, shift: float) -> float:
        width = (1 + shift) ** self._power - shift**self._power
        return float(self._power * shift ** (self._power - 1) / width)

    def cumulative(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The share of the weight below x, where x is from 0 to 1."""
        share: NDArray[np.float64] = ((x + self._shift) ** self._power - self._low) / self._width
        return share

    def quantile(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """The inverse of `cumulative`."""
        shifted: NDArray[np.float64] = (share * self._width + self._low) ** (1 / self._power)
        return shifted - self._shift


def _uniform(seed: int, name: str, first: int, count: int) -> NDArray[np.float64]:
    keys = torch.arange(first, first + count) + derive_seed(seed, "graph", name)
    uniform: NDArray[np.float64] = uniform_at(keys, torch.float64).numpy()
    return uniform


def _below(uniform: NDArray[np.float64], bound: Any) -> NDArray[np.int64]:
    """Integers from 0 to bound − 1."""
    drawn: NDArray[np.int64] = np.clip((uniform * bound).astype(np.int64), 0, bound - 1)
    return drawn


def _sums(
    places: NDArray[np.int64], values: NDArray[np.float64], rows: int, columns: int
) -> NDArray[np.float64]:
    sums = np.bincount(places, values, rows * columns)
    return sums.astype(np.float64).reshape(rows, columns)
