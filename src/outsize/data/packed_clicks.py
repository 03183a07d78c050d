"""A batch of clicks in one buffer of bytes, which one copy moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import UInt8
from torch import Tensor

from outsize.data.click_data import ClickBatch

_ID, _NUMBER = torch.int64.itemsize, torch.float32.itemsize
_ALIGNED = 256  # bytes


@dataclass(frozen=True)
class ClickLayout:
    """Where the parts of a batch are in a buffer: ids by feature, numbers, labels, probabilities.

    Attributes:
        num_examples: Examples of this rank.
        num_global: Examples over all ranks.
        names: The categorical features, each with one id per example.
        num_dense: Number of dense features.
        has_probability: Whether the true probabilities are known.
    """

    num_examples: int
    num_global: int
    names: tuple[str, ...]
    num_dense: int
    has_probability: bool

    @classmethod
    def of(cls, batch: ClickBatch) -> ClickLayout | None:
        """The layout of a batch; `None` if it has bags, whose sizes differ from batch to batch."""
        num = batch.num_examples
        for ids in batch.ids.values():
            if not (isinstance(ids, Tensor) and ids.dtype == torch.int64 and ids.shape == (num,)):
                return None
        if not all(part.dtype == torch.float32 for part in (batch.dense, batch.labels)):
            return None
        return cls(
            num,
            batch.num_global,
            tuple(batch.ids),
            batch.dense.shape[1],
            batch.probability is not None,
        )

    @property
    def num_bytes(self) -> int:
        """Size of the buffer."""
        return _aligned(self._places()[-1].stop)

    def pack(self, batch: ClickBatch, buffer: UInt8[Tensor, " bytes"]) -> None:
        """Copy a batch of this layout into a buffer on the same device."""
        self._pack(batch, buffer.unsqueeze(0))

    def unpack(self, buffer: UInt8[Tensor, " bytes"]) -> ClickBatch:
        """The batch in a buffer, without copying."""
        return next(self._batches(buffer.unsqueeze(0)))

    def split(self, batch: ClickBatch) -> Iterator[ClickBatch]:
        """Pack a batch that is several of this layout, one after the other, and yield them."""
        num = batch.num_examples // self.num_examples
        buffers = batch.labels.new_empty(num, self.num_bytes, dtype=torch.uint8)
        self._pack(batch, buffers)
        yield from self._batches(buffers)

    def _batches(self, buffers: UInt8[Tensor, "batches bytes"]) -> Iterator[ClickBatch]:
        """The batch of each buffer; all are taken apart together, which costs little per batch."""
        parts = (part.unbind(0) for part in self._parts(buffers))
        for buffer, ids, dense, labels, probability in zip(buffers.unbind(0), *parts, strict=True):
            yield ClickBatch(
                dense,
                dict(zip(self.names, ids.unbind(0), strict=True)),
                labels,
                probability if self.has_probability else None,
                self.num_global,
                buffer,
            )

    def _pack(self, batch: ClickBatch, buffers: UInt8[Tensor, "batches bytes"]) -> None:
        ids, dense, labels, probability = self._parts(buffers)
        num, size = buffers.shape[0], self.num_examples
        if self.names:
            columns = [_tensor(batch.ids[name]) for name in self.names]
            if num == 1:
                torch.stack(columns, out=ids[0])
            else:
                ids.copy_(torch.stack(columns).view(-1, num, size).transpose(0, 1))
        dense.copy_(batch.dense.view(num, size, self.num_dense))
        labels.copy_(batch.labels.view(num, size))
        if self.has_probability and batch.probability is not None:
            probability.copy_(batch.probability.view(num, size))

    def _parts(
        self, buffers: UInt8[Tensor, "batches bytes"]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        num = self.num_examples
        ids, dense, labels, probability = (buffers[:, place] for place in self._places())
        return (
            ids.view(torch.int64).unflatten(1, (len(self.names), num)),
            dense.view(torch.float32).unflatten(1, (num, self.num_dense)),
            labels.view(torch.float32),
            probability.view(torch.float32),
        )

    def _places(self) -> list[slice]:
        """The bytes of each part; parts are aligned as tensors of their own would be."""
        num = self.num_examples
        sizes = (
            len(self.names) * num * _ID,
            self.num_dense * num * _NUMBER,
            num * _NUMBER,
            num * _NUMBER if self.has_probability else 0,
        )
        places, start = [], 0
        for size in sizes:
            places.append(slice(start, start + size))
            start += _aligned(size)
        return places


def packed(batch: ClickBatch, device: torch.device) -> ClickBatch:
    """A batch on a device, in one buffer if its layout allows; the copy from the CPU may go on.

    From the CPU it goes through pinned memory, which is kept until the copy is done.
    """
    if batch.buffer is not None and batch.buffer.device == device:
        return batch
    layout = ClickLayout.of(batch)
    if layout is None:
        return batch.to(device)
    if batch.labels.device.type == "cpu" and device.type == "cuda":
        pinned = torch.empty(layout.num_bytes, dtype=torch.uint8, pin_memory=True)
        layout.pack(batch, pinned)
        return layout.unpack(pinned.to(device, non_blocking=True))
    buffer = torch.empty(layout.num_bytes, dtype=torch.uint8, device=batch.labels.device)
    layout.pack(batch, buffer)
    return layout.unpack(buffer.to(device))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def _tensor(ids: object) -> Tensor:
    assert isinstance(ids, Tensor)
    return ids
