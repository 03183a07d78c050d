"""Other samplers of neighbours: torch_geometric's, where it is installed, and plain torch."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Sample = Callable[[Tensor], int]
_DESCRIPTIONS = {
    "torch": "plain torch, written for this benchmark: vectorised over nodes, without replacement",
    "torch_with_replacement": "the same with replacement, which is less work and another result",
    "torch_sparse": "`neighbor_sample` of torch-sparse, which torch_geometric calls",
    "pyg_loader": "`NeighborLoader` of torch_geometric in this process, with torch-sparse",
}
_MODULES = {"torch_sparse": "torch_sparse", "pyg_loader": "torch_geometric"}


def describe(name: str) -> str:
    """What a peer is, for results, with its version."""
    if name not in _MODULES:
        return _DESCRIPTIONS[name]
    version = importlib.import_module(_MODULES[name]).__version__
    return f"{_DESCRIPTIONS[name]}; version {version}"


def make_peers(
    starts: NDArray[np.int64],
    sources: NDArray[np.int32],
    fan_out: Sequence[int],
    *,
    loader: bool = True,
) -> dict[str, Sample]:
    """Name → a function that samples the neighbourhood of seeds and returns its number of edges.

    Args:
        starts: Start of each target's edges, and the end of the last.
        sources: The source of each edge.
        fan_out: Neighbours per hop.
        loader: Whether to include `NeighborLoader`, which holds several copies of the edges.
    """
    given = torch.from_numpy(starts), torch.from_numpy(sources)
    peers: dict[str, Sample] = {
        "torch": _TorchSampler(*given, fan_out).sample,
        "torch_with_replacement": _TorchSampler(*given, fan_out, replace=True).sample,
    }
    if has_torch_sparse():
        wide = given[1].long()
        peers["torch_sparse"] = _torch_sparse(given[0], wide, fan_out)
        if loader and importlib.util.find_spec("torch_geometric"):
            peers["pyg_loader"] = _pyg_loader(given[0], wide, fan_out)
    return peers


def has_torch_sparse() -> bool:
    """Whether torch-sparse is installed, with the sampler that torch_geometric uses."""
    if importlib.util.find_spec("torch_sparse") is None:
        return False
    importlib.import_module("torch_sparse")
    return hasattr(torch.ops.torch_sparse, "neighbor_sample")


class _TorchSampler:
    """Neighbourhoods by torch operations over all nodes of a hop at once.

    Without replacement it draws by Floyd's method, one operation per draw for all nodes. Nodes are
    renumbered by a vector over all nodes of the graph.
    """

    def __init__(
        self, starts: Tensor, sources: Tensor, fan_out: Sequence[int], *, replace: bool = False
    ) -> None:
        self._starts, self._sources = starts, sources
        self._fan_out, self._replace = fan_out, replace
        self._position = torch.full((starts.shape[0] - 1,), -1)

    def sample(self, seeds: Tensor) -> int:
        """Sample the nodes and edges around seeds; returns the number of edges."""
        nodes, position, edges = seeds.unique(), self._position, []
        position[nodes] = torch.arange(nodes.shape[0])
        new = nodes
        for fan_out in self._fan_out:
            drawn = self._draw(new, fan_out)
            new = drawn[position[drawn] < 0].unique()
            position[new] = torch.arange(nodes.shape[0], nodes.shape[0] + new.shape[0])
            nodes = torch.cat((nodes, new))
            edges.append(position[drawn])
        position[nodes] = -1
        return torch.cat(edges).shape[0]

    def _draw(self, nodes: Tensor, fan_out: int) -> Tensor:
        first = self._starts[nodes]
        degrees = self._starts[nodes + 1] - first
        counts = degrees.clamp(max=fan_out)
        total = int(counts.sum())
        if self._replace:
            span = degrees.repeat_interleave(counts, output_size=total)
            places = (torch.rand(total) * span).long().minimum(span - 1)
        else:
            ends = counts.cumsum(0)
            places = torch.arange(total)
            places -= (ends - counts).repeat_interleave(counts, output_size=total)
            is_large = degrees > fan_out
            if bool(is_large.any()):
                drawn = _floyd(degrees[is_large], fan_out)
                places[is_large.repeat_interleave(counts, output_size=total)] = drawn.flatten()
        edges = first.repeat_interleave(counts, output_size=total) + places
        return self._sources[edges].long()


def _floyd(degrees: Tensor, fan_out: int) -> Tensor:
    """`(n, fan_out)` different places below each degree."""
    taken = torch.full((degrees.shape[0], fan_out), -1)
    uniform = torch.rand(fan_out, degrees.shape[0])
    for number in range(fan_out):
        last = degrees - fan_out + number
        place = (uniform[number] * (last + 1)).long().minimum(last)
        is_taken = (taken[:, :number] == place.unsqueeze(1)).any(1)
        taken[:, number] = torch.where(is_taken, last, place)
    return taken


def _torch_sparse(starts: Tensor, sources: Tensor, fan_out: Sequence[int]) -> Sample:
    def sample(seeds: Tensor) -> int:
        found = torch.ops.torch_sparse.neighbor_sample(
            starts, sources, seeds, list(fan_out), False, True
        )
        return int(found[1].shape[0])

    return sample


def _pyg_loader(starts: Tensor, sources: Tensor, fan_out: Sequence[int]) -> Sample:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        num_nodes = starts.shape[0] - 1
        targets = torch.arange(num_nodes).repeat_interleave(starts.diff())
        data = Data(edge_index=torch.stack((sources, targets)), num_nodes=num_nodes)
        loader = NeighborLoader(data, list(fan_out), is_sorted=True)

    def sample(seeds: Tensor) -> int:
        return int(loader(seeds).edge_index.shape[1])

    return sample
