"""Batches on a GPU, made and copied by a thread on a stream of its own while the model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from outsize.contracts import Bag
from outsize.data.click_data import ClickBatch
from outsize.data.packed_clicks import packed
from outsize.data.prefetch import prefetch


def batches_on(
    source: Iterator[ClickBatch],
    device: torch.device,
    prepare: Callable[[ClickBatch], ClickBatch] = lambda batch: batch,
) -> Iterator[ClickBatch]:
    """Yield the batches of a source on a CUDA device, ready for the current stream.

    Args:
        source: Batches on the CPU or on the device; those it makes there are made on the thread's
            stream, too.
        device: The device.
        prepare: Applied to each batch first.
    """
    stream = _stream_for_batches(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # which made what the source reads

    def send(batch: ClickBatch) -> tuple[ClickBatch, torch.cuda.Event]:
        moved = packed(prepare(batch), device)
        return moved, stream.record_event()

    for batch, sent in prefetch(source, send, within=lambda: torch.cuda.stream(stream)):
        current = torch.cuda.current_stream(device)
        current.wait_event(sent)
        for tensor in _memory_of(batch):
            tensor.record_stream(current)
        yield batch


@cache
def _stream_for_batches(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device on which batches are made.

    Torch has 32 per device and hands them out in turn: one per call would become the stream of a
    graph that is being captured.
    """
    return torch.cuda.Stream(device)


def _memory_of(batch: ClickBatch) -> Iterator[Tensor]:
    """Tensors that hold all memory of a batch; it is not reused before the stream has read it."""
    if batch.buffer is not None:
        yield batch.buffer
        return
    yield from (batch.dense, batch.labels)
    if batch.probability is not None:
        yield batch.probability
    for ids in batch.ids.values():
        parts = (ids.values, ids.offsets, ids.weights) if isinstance(ids, Bag) else (ids,)
        yield from (part for part in parts if part is not None)
