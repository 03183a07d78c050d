"""DLRM and its training step as a PyTorch user writes them: the peer of `outsize bench dlrm`.

One `nn.EmbeddingBag(sparse=True)` per feature, and a torch optimizer that takes sparse gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer

from outsize.data import ClickBatch, ClickData
from outsize.models.mlp import mlp

_DIM = 16


class DenseDLRM(nn.Module):
    """What DLRM does with vectors: torch's layers, and products of pairs by `bmm`."""

    pairs: Tensor

    def __init__(self, num_dense: int, num_features: int, dim: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        num = num_features + 1
        row, column = torch.tril_indices(num, num, offset=-1)
        self.register_buffer("pairs", row * num + column, persistent=False)
        bottom = mlp((num_dense, 512, 256, 64, dim), final_relu=True, generator=generator)
        top = mlp((len(row) + dim, 512, 256, 1), final_relu=False, generator=generator)
        self.bottom, self.top = nn.Sequential(*bottom), nn.Sequential(*top)

    def forward(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Logits `(B,)`."""
        hidden = self.bottom(dense)
        stacked = torch.stack([hidden, *vectors], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        # Torch differentiates this faster than products[:, row, column].
        features = torch.cat((hidden, products.index_select(1, self.pairs)), dim=1)
        logits: Tensor = self.top(features).squeeze(1)
        return logits


class PlainDLRM(nn.Module):
    """DLRM as written without this library."""

    def __init__(self, num_dense: int, vocabularies: Mapping[str, int], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag(size, dim, mode="sum", sparse=True)
                for name, size in vocabularies.items()
            }
        )
        self.over = DenseDLRM(num_dense, len(vocabularies), dim)

    def forward(self, dense: Tensor, ids: Mapping[str, Tensor]) -> Tensor:
        """Logits `(B,)`."""
        vectors = [table(ids[name].unsqueeze(1)) for name, table in self.tables.items()]
        logits: Tensor = self.over(dense, vectors)
        return logits


class PlainSteps:
    """Makes training steps of the plain model on stored batches.

    Args:
        data: The log, for the shape of the model.
        kind: "sgd" or "adagrad".
        batches: The batches, which are used in turn.
        device: Where they are.
    """

    def __init__(
        self, data: ClickData, kind: str, batches: Sequence[ClickBatch], device: torch.device
    ) -> None:
        self._shape = (data.num_dense, data.vocabularies, _DIM)
        self._kind, self._batches, self._device = kind, batches, device

    def eager(self) -> Callable[[], None]:
        """A step as PyTorch runs it."""
        return self._steps(PlainDLRM(*self._shape).to(self._device))

    def compiled(self) -> Callable[[], None]:
        """The same with the dense part compiled; `torch.compile` has no sparse gradients."""
        model = PlainDLRM(*self._shape).to(self._device)
        model.over.compile(dynamic=False)
        return self._steps(model)

    def _steps(self, model: PlainDLRM) -> Callable[[], None]:
        kinds: dict[str, Callable[..., Optimizer]] = {"sgd": SGD, "adagrad": Adagrad}
        optimizer = kinds[self._kind](model.parameters(), lr=0.01)
        turn = cycle(self._batches)
        model.train()

        def step() -> None:
            batch = next(turn)
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)
            loss.backward()
            optimizer.step()

        return step
