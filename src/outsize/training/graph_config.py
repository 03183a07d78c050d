"""What a graph model predicts, and how neighbourhoods are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outsize.errors import ConfigError

_ALL = -1


@dataclass(frozen=True)
class GraphConfig:
    """What is predicted from which neighbours.

    Attributes:
        predict: "nodes" for the classes of nodes, "links" for edges.
        fan_out: Neighbours per relation and hop in training, from the seeds outwards, one number
            for each layer; −1 for all of them.
        eval_fan_out: The same in evaluation, at every hop; by default all neighbours.
        exclude_links: Whether a link that is predicted in a step is left out of the neighbourhoods
            of that step, in both directions; otherwise it predicts itself.
    """

    predict: Literal["nodes", "links"] = "nodes"
    fan_out: tuple[int, ...] = (10, 25)
    eval_fan_out: int = _ALL
    exclude_links: bool = True

    def __post_init__(self) -> None:
        for name, values in (("fan_out", self.fan_out), ("eval_fan_out", (self.eval_fan_out,))):
            if not values or any(value < 1 and value != _ALL for value in values):
                raise ConfigError(
                    f"{name} must be >= 1 for each hop, or -1 for all neighbours, but got "
                    f"{list(values) if name == 'fan_out' else values[0]}"
                )

    def require_layers(self, num_layers: int) -> None:
        """Refuse a fan-out that does not fit the number of layers."""
        if len(self.fan_out) != num_layers:
            raise ConfigError(
                f"graph.fan_out = {list(self.fan_out)} has {len(self.fan_out)} hops, but "
                f"model.layers = {num_layers}: give one number for each layer"
            )
