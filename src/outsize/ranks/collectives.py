"""Collective operations that also work in a single process.

Without a process group there is one rank, and nothing is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from outsize.errors import LostRanksError
from outsize.interrupts import StopRequested, stop_requested
from outsize.ranks.gloo_threads import schedule_gloo_as_batch, starting_batch_threads
from outsize.ranks.machines import are_on_one_machine, has_launcher, machine_number
from outsize.ranks.pieces import is_large, swap_in_pieces

_LOST_RANK_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Connection timed out",
    "Broken pipe",
    "Gloo connectFullMesh failed",
    "wait timeout",
    "send operation to complete",
    "remote process exited",
)


def is_launched_as_rank() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_restarted() -> bool:
    """Whether torchrun started this process in place of one that was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Initialize the process group for the block if a launcher started several ranks.

    If another rank is lost, the backend's error is raised as a `LostRanksError`.
    """
    if not is_launched_as_rank() or dist.is_initialized():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _as_lost_ranks_error():
        if device.type == "cuda":
            _join("nccl")
        else:
            with starting_batch_threads():
                _join("gloo")
        try:
            yield
            dist.barrier()  # no rank leaves while another needs it
        finally:
            dist.destroy_process_group()


@contextmanager
def _as_lost_ranks_error() -> Iterator[None]:
    """Raise a backend's error about lost ranks as a `LostRanksError` of one line."""
    try:
        yield
    except RuntimeError as error:
        fact = next((text for text in _LOST_RANK_TEXTS if text in str(error)), None)
        if fact is None:
            raise
        raise LostRanksError(
            f"rank {os.environ.get('RANK', '0')}: lost the other ranks ({fact}): torchrun restarts "
            "them all if it may (--max-restarts), or start again with --resume"
        ) from error


def _join(backend: str) -> None:
    """Initialize the process group, without addresses from before a restart.

    torchrun may keep its store over restarts, with the addresses of processes that are gone. A
    prefix per attempt avoids them. Each machine counts restarts on its own, so this is done only if
    all ranks are on one machine.
    """
    if not (is_restarted() and are_on_one_machine()):
        dist.init_process_group(backend)
        return
    store, number, count = next(rendezvous("env://"))
    own = dist.PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=number, world_size=count)


def world_size() -> int:
    """The number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this rank, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_rank() -> int:
    """The number of this rank on its machine, as the launcher counts."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def first_rank_first() -> Iterator[None]:
    """Run the block on one rank per machine first, for example to fill a cache on disk."""
    if local_rank() > 0:
        barrier()
    yield
    if local_rank() == 0:
        barrier()


def barrier() -> None:
    """Wait until all ranks call this."""
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum of a tensor of equal shape over all ranks."""
    if world_size() == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total


def mean_over_ranks_(values: Tensor) -> None:
    """Replace a flat tensor by its mean over all ranks, summed in the order of ranks.

    `all_reduce` adds in an order that depends on the place of a value in the tensor. Here it does
    not, so a value has the same mean wherever it is. The bytes sent are the same.
    """
    size = world_size()
    sent = torch.nn.functional.pad(values, (0, -values.shape[0] % size))
    received = torch.empty_like(sent)
    is_cut = is_large(sent.nbytes // size) and not are_on_one_machine()
    if is_cut and dist.get_backend() == "gloo":
        theirs, ours = (dict(enumerate(each.view(size, -1))) for each in (received, sent))
        swap_in_pieces(theirs, ours)
    else:
        dist.all_to_all_single(received, sent)
    own, *others = received.view(size, -1)
    for other in others:
        own += other
    own /= size
    dist.all_gather(list(sent.view(size, -1)), own)
    values.copy_(sent[: values.shape[0]])


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether the flag is set on any rank."""
    if world_size() == 1:
        return flag
    return bool(sum_over_ranks(torch.tensor(int(flag), device=device)).item())


def check_stop_together(device: torch.device) -> None:
    """Raise `StopRequested` on all ranks if any is asked to stop; all ranks call it."""
    if any_rank(stop_requested(), device):
        raise StopRequested


def broadcast_first(tensors: Iterable[Tensor]) -> None:
    """Copy the first rank's values to every rank, in place."""
    if world_size() == 1:
        return
    for tensor in tensors:
        # As bytes: no backend sends every type. NCCL sends only tensors on its device.
        content = tensor.detach().view(-1).view(torch.uint8)
        sent = content.cuda() if dist.get_backend() == "nccl" else content
        dist.broadcast(sent, 0)
        if sent is not content:
            content.copy_(sent)


def gather_rows(rows: Tensor) -> list[Tensor]:
    """The rows of every rank, in the order of ranks; their numbers may differ."""
    if world_size() == 1:
        return [rows]
    mine = torch.tensor([rows.shape[0]], device=rows.device)
    counts = [torch.zeros_like(mine) for _ in range(world_size())]
    dist.all_gather(counts, mine)
    sizes = [int(count) for count in counts]
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(parts, padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]


def gather_values(value: Any) -> list[Any]:
    """The value of every rank, in the order of ranks; any JSON value."""
    if world_size() == 1:
        return [value]
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    everyone = gather_rows(content.to(device))
    return [json.loads(bytes(part.tolist())) for part in everyone]


def value_of_first(value: Any) -> Any:
    """The first rank's value, on every rank; any JSON value."""
    return gather_values(value if rank() == 0 else None)[0]


@runtime_checkable
class RankGroup(Protocol):
    """A group of ranks that swap messages in collective calls.

    Attributes:
        rank: The number of this rank.
        size: The number of ranks.
    """

    rank: int
    size: int

    def swap_counts(self, counts: Int64[Tensor, "size k"]) -> Int64[Tensor, "size k"]:
        """Send line i to rank i; return one line from each rank, in the order of ranks."""

    def swap_bytes(
        self, messages: Sequence[UInt8[Tensor, " _"]], sizes: Sequence[int]
    ) -> list[UInt8[Tensor, " _"]]:
        """Send message i to rank i; return `sizes[i]` bytes from each rank i."""


class ProcessRanks:
    """The ranks of a torch process group; without one, this process alone.

    Args:
        group: The group; `None` for the default group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if dist.is_initialized() else 0
        self.size = dist.get_world_size(group) if dist.is_initialized() else 1
        # NCCL sends only tensors on its device, gloo only tensors in main memory.
        is_nccl = dist.is_initialized() and dist.get_backend(group) == "nccl"
        self._device = torch.device("cuda" if is_nccl else "cpu")
        self._cuts_messages: bool | None = None
        if self.size > 1 and not is_nccl:
            schedule_gloo_as_batch()

    def own_group(self) -> ProcessRanks:
        """The same ranks in a gloo group of their own, which another thread may use meanwhile.

        All of them call it. The group ends with the process group of the run.
        """
        if self.size == 1:
            return self
        members = dist.get_process_group_ranks(self._group)
        with starting_batch_threads():
            group = dist.new_group(members, backend="gloo", use_local_synchronization=True)
        return ProcessRanks(group)

    def swap_counts(self, counts: Int64[Tensor, "size k"]) -> Int64[Tensor, "size k"]:  # noqa: D102
        if self.size == 1:
            return counts
        received = torch.empty_like(counts, device=self._device)
        dist.all_to_all_single(received, counts.to(self._device), group=self._group)
        return received.to(counts.device)

    def swap_bytes(  # noqa: D102
        self, messages: Sequence[UInt8[Tensor, " _"]], sizes: Sequence[int]
    ) -> list[UInt8[Tensor, " _"]]:
        if self.size == 1:
            return list(messages)
        if self._cuts_messages is None:
            self._cuts_messages = self._device.type == "cpu" and not self._are_on_one_machine()
        if not self._cuts_messages:
            return self._all_to_all(messages, sizes)
        large = {rank: part.cpu() for rank, part in enumerate(messages) if is_large(len(part))}
        wanted = {rank: size for rank, size in enumerate(sizes) if is_large(size)}
        small = [part[:0] if rank in large else part for rank, part in enumerate(messages)]
        found = self._all_to_all(small, [0 if is_large(size) else size for size in sizes])
        if large or wanted:
            parts = {rank: torch.empty(size, dtype=torch.uint8) for rank, size in wanted.items()}
            swap_in_pieces(parts, large, self._group)
            for rank, part in parts.items():
                found[rank] = part.to(messages[0].device)
        return found

    def _are_on_one_machine(self) -> bool:
        """Whether all ranks are on this machine; without a launcher, they tell each other."""
        if has_launcher():
            return are_on_one_machine()
        own = machine_number()
        return bool((self.swap_counts(torch.full((self.size, 1), own)) == own).all())

    def _all_to_all(
        self, messages: Sequence[UInt8[Tensor, " _"]], sizes: Sequence[int]
    ) -> list[UInt8[Tensor, " _"]]:
        sent = _joined(messages)
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        splits = [message.shape[0] for message in messages]
        dist.all_to_all_single(
            received, sent.to(self._device), list(sizes), splits, group=self._group
        )
        return list(received.to(sent.device).split(list(sizes)))


def _joined(messages: Sequence[UInt8[Tensor, " _"]]) -> UInt8[Tensor, " bytes"]:
    """All messages as one; those that are next to each other in memory are not copied."""
    filled = [message for message in messages if message.shape[0]]
    if not filled:
        return messages[0][:0]
    first, size = filled[0], sum(message.shape[0] for message in filled)
    memory, stop = first.untyped_storage().data_ptr(), first.data_ptr()
    for message in filled:
        if message.data_ptr() != stop or message.untyped_storage().data_ptr() != memory:
            return torch.cat(filled)
        stop += message.shape[0]
    return first.as_strided((size,), (1,))
