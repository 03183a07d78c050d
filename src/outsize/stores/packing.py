"""Updates, requests and replies as bytes: one message per pair of ranks in each direction.

A message is a sequence of sections, each padded to eight bytes so that it can be read in place.
Row ids travel as positions within the owner's shard, in four bytes if they fit, else in eight.
Clocks and ticks take four bytes. What the receiver can compute, such as the number of rows per
group, is not sent. A wire rounds rows and gradients. Optimizer state, and the squares that are
summed into it, travel as float32: if a variance rounds to 0 and its mean does not, the step is
unbounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from outsize.contracts import RowLayout, RowReply, RowUpdate
from outsize.kernels.arrays import array, is_plain
from outsize.kernels.exchange.routes import quotients
from outsize.kernels.rows.updates import UpdateRule
from outsize.ranks.sections import Message, MessageReader, MessageWriter, padded
from outsize.stores.merging import empty_update, merge_updates
from outsize.stores.wire import Float32Wire, Wire, wire_for

_MAX_INT32 = (1 << 31) - 1
_EXACT = Float32Wire()


@dataclass(frozen=True)
class RowRequest:
    """What one rank sends to an owner: the update it pushes, and the rows it requests.

    Attributes:
        update: The update.
        ids: The rows, ascending.
        clocks: The clocks that they are requested with, if any.
        places: On the rank that requests: their places among its rows of all owners.
    """

    update: RowUpdate
    ids: Int64[Tensor, " n"]
    clocks: Int64[Tensor, " n"] | None
    places: Int64[Tensor, " n"] | None = None


class Packing:
    """Writes and reads the messages of one store."""

    def __init__(self, layout: RowLayout, num_owners: int) -> None:
        self._layout = layout
        self._num_owners = num_owners
        fits = layout.num_rows // num_owners <= _MAX_INT32
        self._position_type = torch.int32 if fits else torch.int64

    def write_request(
        self, request: RowRequest, wire: Wire, rule: UpdateRule | None
    ) -> tuple[Message, tuple[int, int, int]]:
        """A request as bytes, with the counts needed to read it.

        The counts are the rows pushed by the wire, the rows pushed by the finer wire (those without
        error feedback) and the rows requested.
        """
        writer = MessageWriter()
        coarse, fine = _by_precision(request.update)
        self._put_update(writer, coarse, wire, rule)
        if fine is not None:
            self._put_update(writer, fine, wire.finer, rule)
        self._put_ids(writer, request.ids)
        if request.clocks is not None:
            writer.put("clocks", request.clocks.clamp_max(_MAX_INT32).to(torch.int32))
        num_fine = 0 if fine is None else fine.ids.shape[0]
        return writer.message(request.ids.device), (
            coarse.ids.shape[0],
            num_fine,
            request.ids.shape[0],
        )

    def read_request(
        self,
        content: UInt8[Tensor, " bytes"],
        numbers: Sequence[int],
        owner: int,
        has_clocks: bool,
        wire: Wire,
        rule: UpdateRule | None,
        *,
        with_squares: bool = True,
    ) -> RowRequest:
        """Read what `write_request` wrote for this owner.

        Without `with_squares`, squares are left out if every row of the update has one tick.
        """
        reader = MessageReader(content)
        *sizes, num_requested = numbers
        updates = [
            self._take_update(reader, size, owner, chosen, rule, with_squares)
            for size, chosen in zip(sizes, (wire, wire.finer), strict=True)
            if size or chosen is wire
        ]
        ids = self._take_ids(reader, num_requested, owner)
        clocks = reader.take(num_requested, torch.int32).long() if has_clocks else None
        return RowRequest(merge_updates(updates, self._layout, rule), ids, clocks)

    def _put_update(
        self, writer: MessageWriter, update: RowUpdate, wire: Wire, rule: UpdateRule | None
    ) -> None:
        if not update.ids.shape[0]:
            return  # its sections are empty
        self._put_ids(writer, update.ids)
        writer.put("clocks", update.ticks.to(torch.int32))
        for part in update.gradients:
            self._put_vectors(writer, "gradients", part.float(), wire)
        if rule is not None and update.squares is not None:
            several = update.ticks > 1  # for a single batch, the owner computes the square
            flags = several.split([part.shape[0] for part in update.gradients])
            for part, flag in zip(update.squares, flags, strict=True):
                self._put_vectors(writer, "gradients", part[flag], _EXACT)

    def _take_update(
        self,
        reader: MessageReader,
        num: int,
        owner: int,
        wire: Wire,
        rule: UpdateRule | None,
        with_squares: bool,
    ) -> RowUpdate:
        ids = self._take_ids(reader, num, owner)
        if not num and not with_squares:
            return empty_update(self._layout, ids.device)
        ticks = reader.take(num, torch.int32).long()
        sizes = self._layout.group_sizes(ids)
        gradients = tuple(
            self._take_vectors(reader, size, group.dim, wire)
            for size, group in zip(sizes, self._layout.groups, strict=True)
        )
        squares: list[Tensor] = []
        several = ticks > 1
        if rule is not None and (with_squares or bool(several.any())):
            for part, flag in zip(gradients, several.split(sizes), strict=True):
                square = rule.square(part)
                if square is None:
                    break
                num_several = int(flag.sum())
                square[flag] = self._take_vectors(reader, num_several, square.shape[1], _EXACT)
                squares.append(square)
        return RowUpdate(ids, gradients, ticks, tuple(squares) or None)

    def put_flags(self, writer: MessageWriter, reply: RowReply) -> None:
        """Write one bit per row that says whether it is sent, and `RowReply.behind`."""
        stale, behind = reply.stale, reply.behind
        worst = -_MAX_INT32 - 1 if behind is None else max(behind, -_MAX_INT32)
        if is_plain(stale):  # both sections at once
            content = np.zeros(self.num_flag_bytes(stale.shape[0]), np.uint8)
            content[:4].view(np.int32)[0] = worst
            bits = np.packbits(array(stale.contiguous()), bitorder="little")
            content[padded(4) :][: bits.shape[0]] = bits
            writer.put("clocks", torch.from_numpy(content))
            return
        writer.put("clocks", torch.tensor([worst], dtype=torch.int32, device=stale.device))
        writer.put("clocks", _packed(stale))

    def take_flags(self, reader: MessageReader, num: int) -> tuple[Bool[Tensor, " n"], int | None]:
        """Read what `put_flags` wrote."""
        worst = int(reader.take(1, torch.int32))
        stale = _unpacked(reader.take(-(-num // 8), torch.uint8), num)
        return stale, None if worst == -_MAX_INT32 - 1 else worst

    def num_flag_bytes(self, num: int) -> int:
        """Bytes of the flags for `num` rows."""
        return padded(4) + padded(-(-num // 8))

    def put_rows(self, writer: MessageWriter, reply: RowReply, wire: Wire) -> None:
        """Write the rows of a reply, their clocks and their state."""
        writer.put("clocks", reply.clocks.to(torch.int32))
        for group, rows in enumerate(reply.rows):
            self._put_vectors(writer, "rows", rows.float(), wire)
            for values in (reply.state[group] if reply.state else {}).values():
                self._put_vectors(writer, "rows", values, _EXACT)

    def take_rows(
        self, reader: MessageReader, sizes: Sequence[int], rule: UpdateRule | None, wire: Wire
    ) -> tuple[Int64[Tensor, " n"], tuple[Tensor, ...], tuple[dict[str, Tensor], ...]]:
        """Read what `put_rows` wrote, given the number of rows per group: clocks, rows and state.

        `rule` defines the state; `None` if none was sent.
        """
        clocks = reader.take(sum(sizes), torch.int32).long()
        rows: list[Tensor] = []
        state: list[dict[str, Tensor]] = []
        for size, group in zip(sizes, self._layout.groups, strict=True):
            rows.append(self._take_vectors(reader, size, group.dim, wire).to(group.dtype))
            widths = {} if rule is None else rule.state_widths(group.dim)
            state.append(
                {name: self._take_vectors(reader, size, w, _EXACT) for name, w in widths.items()}
            )
        return clocks, tuple(rows), tuple(state)

    def num_row_bytes(self, sizes: Sequence[int], rule: UpdateRule | None, wire: Wire) -> int:
        """Bytes of a reply with these numbers of rows per group."""
        total = padded(4 * sum(sizes))
        for size, group in zip(sizes, self._layout.groups, strict=True):
            widths = {} if rule is None else rule.state_widths(group.dim)
            total += padded(size * wire_for(group.dim, wire).bytes_per_row(group.dim))
            total += sum(padded(size * _EXACT.bytes_per_row(width)) for width in widths.values())
        return total

    def _put_ids(self, writer: MessageWriter, ids: Int64[Tensor, " n"]) -> None:
        writer.put("ids", quotients(ids, self._num_owners).to(self._position_type))

    def _take_ids(self, reader: MessageReader, num: int, owner: int) -> Int64[Tensor, " n"]:
        positions = reader.take(num, self._position_type).long()
        return positions * self._num_owners + owner  # see `Shard`

    def _put_vectors(
        self, writer: MessageWriter, kind: str, vectors: Float[Tensor, "n dim"], wire: Wire
    ) -> None:
        writer.put(kind, wire_for(vectors.shape[1], wire).encode(vectors))

    def _take_vectors(
        self, reader: MessageReader, num: int, dim: int, wire: Wire
    ) -> Float[Tensor, "n dim"]:
        wire = wire_for(dim, wire)
        size = wire.bytes_per_row(dim)
        return wire.decode(reader.take(num * size, torch.uint8).view(num, size), dim)


def _packed(flags: Bool[Tensor, " n"]) -> UInt8[Tensor, " bytes"]:
    """Flags as bits, the first one in the lowest bit."""
    bits = flags.new_zeros(-(-flags.shape[0] // 8) * 8, dtype=torch.uint8)
    bits[: flags.shape[0]] = flags
    places = 1 << torch.arange(8, dtype=torch.uint8, device=flags.device)
    return (bits.view(-1, 8) * places).sum(dim=1, dtype=torch.uint8)


def _unpacked(content: UInt8[Tensor, " bytes"], num: int) -> Bool[Tensor, " n"]:
    """What `_packed` packed."""
    if is_plain(content):
        bits = np.unpackbits(array(content.contiguous()), count=num, bitorder="little")
        return torch.from_numpy(bits).view(torch.bool)
    places = 1 << torch.arange(8, dtype=torch.uint8, device=content.device)
    return (content.unsqueeze(1) & places).ne(0).view(-1)[:num]


def _by_precision(update: RowUpdate) -> tuple[RowUpdate, RowUpdate | None]:
    """Split an update into the rows for the wire and the rows for the finer wire, if any."""
    if update.exact is None or not bool(update.exact.any()):
        return update, None
    coarse, fine = (flag.nonzero().flatten() for flag in (~update.exact, update.exact))
    return update.take(coarse), update.take(fine)
