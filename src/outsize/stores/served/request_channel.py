"""Asynchronous requests between ranks, answered by a server thread in each rank.

Every rank has a *server*, the thread that answers, and a *client*, the caller of `send`. They use
two gloo groups: on the first, clients send requests to servers; on the second, servers send answers
to clients. A message is a header of fixed size, then its content under another tag.

There is no deadlock. A client posts all its requests, and a receive for the header of each answer,
before it waits. A server waits for two things only: a header from any rank, and the content of that
request, which the client has posted already. It posts an answer without waiting for its delivery.
It waits for the delivery when the next request of that rank arrives. By then the answer has been
received, because a client sends no request before it has all answers to the last one. A server that
ends early sends a refusal to all ranks, so that no client waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from jaxtyping import Int64, UInt8
from torch import Tensor

from outsize.errors import OutsizeError, OwnerError

NUM_NUMBERS = 4
_HEADER, _CONTENT = 0, 1  # tags
_FOREVER = timedelta(days=365)  # a server may be idle for that long
_LEAVING_S = 5.0


class _Kind(IntEnum):
    REQUEST = 0
    GOODBYE = 1  # the sender has no more requests
    LEAVE = 2  # the same after an error; the echo wakes the sender's own server
    ECHO = 3
    ANSWER = 4
    REFUSAL = 5  # the content is a text


@dataclass(frozen=True)
class Request:
    """A request to one owner.

    Attributes:
        numbers: What the server needs to read the content: `NUM_NUMBERS` integers.
        content: The bytes.
    """

    numbers: Sequence[int]
    content: UInt8[Tensor, " bytes"]


Answer = Callable[[int, Request], UInt8[Tensor, " bytes"]]


@dataclass
class _Sent:
    """Messages that are being sent, and the tensors that hold them."""

    works: list[dist.Work] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
        self.tensors.clear()


class RequestChannel:
    """Sends requests to other ranks and answers theirs.

    All ranks construct it together, in the same order, and all call `close`. A rank that ends
    without `close` notifies the others, whose next call raises.

    Args:
        answer: Maps (rank of the client, request) to the answer; called on the server thread. The
            message of an exception is sent back, and the client raises it as an `OwnerError`.
    """

    def __init__(self, answer: Answer) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._answer = answer
        self._requests = _new_group(_FOREVER)
        self._answers = _new_group(None)
        self._sent = _Sent()
        self._served = {rank: _Sent() for rank in self._others()}
        self._refused = _Sent()
        self._headers: dict[int, tuple[dist.Work, Tensor]] = {}
        self._gone: set[int] = set()
        self._is_leaving = False
        self._is_closed = False
        self._failure: str | None = None
        self._server = threading.Thread(target=self._serve, name="row server", daemon=True)
        self._server.start()
        # A thread that wakes while the interpreter ends would take the process down with it.
        atexit.register(self.leave)

    def send(self, requests: Mapping[int, Request]) -> None:
        """Send requests without waiting; call `collect` before the next `send`."""
        self._require_alive()
        assert not self._headers, "the last answers were not collected"
        for receiver in requests:
            header = _empty_header()
            work = self._answers.recv([header], receiver, _HEADER)
            self._headers[receiver] = (work, header)
        for receiver, request in requests.items():
            content = request.content.cpu()
            header = _header(_Kind.REQUEST, content, request.numbers)
            with _as_owner_error(f"the request to rank {receiver} failed"):
                _post(self._requests, self._sent, receiver, header, content)

    def collect(self) -> dict[int, UInt8[Tensor, " bytes"]]:
        """Wait for the answers to the last `send`, and return them by rank."""
        self._require_alive()
        answers: dict[int, Tensor] = {}
        refusals: list[str] = []
        for owner, (work, header) in self._headers.items():
            with _as_owner_error(f"rank {owner} did not answer"):
                work.wait()
                kind, size = header[:2].tolist()
                content = torch.empty(size, dtype=torch.uint8)
                if size:
                    self._answers.recv([content], owner, _CONTENT).wait()
            if kind == _Kind.REFUSAL:
                refusals.append(f"rank {owner} refused: {bytes(content.tolist()).decode()}")
            answers[owner] = content
        self._headers.clear()
        if refusals:
            raise OwnerError("; ".join(refusals))
        with _as_owner_error("a request was not received"):
            self._sent.wait()
        return answers

    def barrier(self) -> None:
        """Wait until all ranks call this."""
        self._require_alive()
        with _as_owner_error("not all ranks reached the barrier"):
            self._answers.barrier().wait()

    def close(self) -> None:
        """Answer until no rank has a request left, then stop; all ranks call it."""
        if self._is_closed:
            return
        try:
            self.barrier()
            for receiver in self._others():
                with _as_owner_error(f"the goodbye to rank {receiver} failed"):
                    _post(self._requests, self._sent, receiver, _header(_Kind.GOODBYE))
            with _as_owner_error("a goodbye was not received"):
                self._sent.wait()
            # The server waits for any rank, so it does not notice a rank that died.
            self.barrier()
        except BaseException:
            self.leave()
            raise
        self._server.join()
        self._is_closed = True
        atexit.unregister(self.leave)

    @property
    def is_closed(self) -> bool:
        """Whether this rank has closed the channel, or left it."""
        return self._is_closed

    def leave(self) -> None:
        """Stop without waiting for other ranks, after an error."""
        if self._is_closed:
            return
        self._is_closed = self._is_leaving = True
        for receiver in self._others():
            with contextlib.suppress(RuntimeError):  # the rank is gone
                _post(self._requests, self._sent, receiver, _header(_Kind.LEAVE))
        self._server.join(_LEAVING_S)
        self._refuse_all(f"rank {self.rank} left before its work was done")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise OwnerError(self._failure)
        if self._is_closed:
            raise OwnerError("this store is closed: rows of other ranks cannot be read")

    def _serve(self) -> None:
        """Answer requests; runs on the server thread."""
        try:
            while len(self._gone) < self.size - 1 and not self._is_leaving:
                header = _empty_header()
                work = self._requests.recv_anysource([header], _HEADER)
                work.wait()
                if not self._is_leaving:
                    self._process(work._source_rank(), header)
        except Exception as error:  # the next call raises it
            self._failure = f"the server thread of rank {self.rank} ended: {_describe(error)}"
            self._refuse_all(self._failure)

    def _refuse_all(self, reason: str) -> None:
        """Send a refusal to every rank: this one answers no more requests."""
        for receiver in self._others():
            with contextlib.suppress(RuntimeError):  # the rank is gone
                _post(self._answers, self._refused, receiver, *_refusal(reason))

    def _process(self, source: int, header: Int64[Tensor, " n"]) -> None:
        """Process one message from another rank."""
        sent = self._served[source]
        kind, size, *numbers = header.tolist()
        if kind in (_Kind.GOODBYE, _Kind.LEAVE):
            self._gone.add(source)
        if kind == _Kind.LEAVE:
            self._failure = f"rank {source} left before its work was done"
            with contextlib.suppress(RuntimeError):
                _post(self._requests, sent, source, _header(_Kind.ECHO))
        if kind != _Kind.REQUEST:
            return
        try:
            content = torch.empty(size, dtype=torch.uint8)
            if size:
                self._requests.recv([content], source, _CONTENT).wait()
            sent.wait()
        except RuntimeError as error:  # go on serving the others
            self._gone.add(source)
            self._failure = f"rank {source} is gone: {_describe(error)}"
            return
        try:
            answer = self._answer(source, Request(numbers, content)).cpu()
            header = _header(_Kind.ANSWER, answer)
        except Exception as error:  # the client raises it
            header, answer = _refusal(_describe(error))
        with contextlib.suppress(RuntimeError):
            _post(self._answers, sent, source, header, answer)


def _new_group(timeout: timedelta | None) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup), "this rank is in a group of all"
    return group


def _empty_header() -> Int64[Tensor, " n"]:
    return torch.empty(2 + NUM_NUMBERS, dtype=torch.int64)


def _header(
    kind: _Kind, content: Tensor | None = None, numbers: Sequence[int] = (0,) * NUM_NUMBERS
) -> Int64[Tensor, " n"]:
    return torch.tensor([kind, 0 if content is None else content.shape[0], *numbers])


def _refusal(reason: str) -> tuple[Int64[Tensor, " n"], UInt8[Tensor, " bytes"]]:
    """Header and content of a refusal."""
    content = torch.frombuffer(bytearray(reason.encode()), dtype=torch.uint8)
    return _header(_Kind.REFUSAL, content), content


def _post(
    group: dist.ProcessGroup,
    sent: _Sent,
    receiver: int,
    header: Int64[Tensor, " n"],
    content: UInt8[Tensor, " bytes"] | None = None,
) -> None:
    """Start sending a message."""
    sent.tensors.append(header)
    sent.works.append(group.send([header], receiver, _HEADER))
    if content is not None and content.shape[0]:
        sent.tensors.append(content)
        sent.works.append(group.send([content], receiver, _CONTENT))


@contextlib.contextmanager
def _as_owner_error(what: str) -> Iterator[None]:
    """Raise a network error as an `OwnerError` that says what failed."""
    try:
        yield
    except RuntimeError as error:
        raise OwnerError(f"{what}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """The message of an error, with its type unless it is an `OutsizeError`."""
    return str(error) if isinstance(error, OutsizeError) else f"{type(error).__name__}: {error}"
