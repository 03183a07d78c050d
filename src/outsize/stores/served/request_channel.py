"""Requests between ranks, each answered when it comes, by a thread that waits for them.

Every rank has a *server*, a thread that answers, and an *asker*, whoever calls `send`. Two groups
of gloo keep them apart: on the first askers send requests to servers, on the second servers send
answers to askers. A message is a header of fixed size, then its content, under another tag.

Nothing here can wait in a circle. An asker posts all its requests, and a place for the header of
each answer, before it waits. A server waits for two things only: a header from any rank, and the
content behind it, which its asker has posted already. It posts answers without waiting for them to
be taken; it waits for the last answer to a rank when that rank's next request is here, and by then
the answer has been taken, because an asker sends no request before it has all answers to the last.
A server that ends before its time refuses all ranks, so that whoever waits for its answer is told.
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
_FOREVER = timedelta(days=365)  # how long a server may have nothing to do
_LEAVING_S = 5.0


class _Kind(IntEnum):
    ASK = 0
    GOODBYE = 1  # its sender asks no more
    LEAVE = 2  # the same from a rank that cannot wait, and wants an echo so that its server wakes
    ECHO = 3
    ANSWER = 4
    REFUSAL = 5  # the content is a text


@dataclass(frozen=True)
class Request:
    """What one owner is asked.

    Attributes:
        numbers: Whatever the answerer needs to read the content, `NUM_NUMBERS` of them.
        content: The bytes.
    """

    numbers: Sequence[int]
    content: UInt8[Tensor, " bytes"]


Answer = Callable[[int, Request], UInt8[Tensor, " bytes"]]


@dataclass
class _Sent:
    """Messages on their way, and the memory they are sent from."""

    works: list[dist.Work] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works.clear()
        self.tensors.clear()


class RequestChannel:
    """Sends requests to other ranks and answers theirs.

    Made by all ranks together, in an order they agree on. `close` is entered by all ranks; a rank
    that ends without it tells the others that it leaves, and their next call is an error.

    Args:
        answer: Given the rank that asks and its request, the answer; called on the server's thread.
            An exception is sent back as a text and is an `OwnerError` for the asker.
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
        """Ask ranks without waiting; `collect` comes before the next `send`."""
        self._require_alive()
        assert not self._headers, "the last answers were not collected"
        for receiver in requests:
            header = _empty_header()
            work = self._answers.recv([header], receiver, _HEADER)
            self._headers[receiver] = (work, header)
        for receiver, request in requests.items():
            content = request.content.cpu()
            header = _header(_Kind.ASK, content, request.numbers)
            with _telling(f"rank {receiver} cannot be asked"):
                _post(self._requests, self._sent, receiver, header, content)

    def collect(self) -> dict[int, UInt8[Tensor, " bytes"]]:
        """Wait for the answers to what was sent, and give each rank's; none if nothing was."""
        self._require_alive()
        answers: dict[int, Tensor] = {}
        refusals: list[str] = []
        for owner, (work, header) in self._headers.items():
            with _telling(f"rank {owner} did not answer"):
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
        with _telling("a request was not received"):
            self._sent.wait()
        return answers

    def meet(self) -> None:
        """Wait until all ranks are here."""
        self._require_alive()
        with _telling("not all ranks came"):
            self._answers.barrier().wait()

    def close(self) -> None:
        """Answer until no rank has a question left, then stop; entered by all ranks."""
        if self._is_closed:
            return
        try:
            self.meet()
            for receiver in self._others():
                with _telling(f"rank {receiver} cannot be told goodbye"):
                    _post(self._requests, self._sent, receiver, _header(_Kind.GOODBYE))
            with _telling("a goodbye was not received"):
                self._sent.wait()
            # The server waits for any rank, and so is never told of one that died.
            self.meet()
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
        """Stop without waiting for other ranks to be done: the way out after an error."""
        if self._is_closed:
            return
        self._is_closed = self._is_leaving = True
        for receiver in self._others():
            with contextlib.suppress(RuntimeError):  # a rank that is gone cannot be told
                _post(self._requests, self._sent, receiver, _header(_Kind.LEAVE))
        self._server.join(_LEAVING_S)
        self._refuse_all(f"rank {self.rank} has left in the midst of its work")

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise OwnerError(self._failure)
        if self._is_closed:
            raise OwnerError("this store is closed: rows of other ranks are out of reach")

    def _serve(self) -> None:
        """The server's thread."""
        try:
            while len(self._gone) < self.size - 1 and not self._is_leaving:
                header = _empty_header()
                work = self._requests.recv_anysource([header], _HEADER)
                work.wait()
                if not self._is_leaving:
                    self._take(work._source_rank(), header)
        except Exception as error:  # whatever it is, the next call must tell it
            self._failure = f"the thread that answers other ranks ended: {_words(error)}"
            self._refuse_all(self._failure)

    def _refuse_all(self, words: str) -> None:
        """Tell every rank that waits for an answer, or will, that this one gives none any more."""
        for receiver in self._others():
            with contextlib.suppress(RuntimeError):  # a rank that is gone needs no answer
                _post(self._answers, self._refused, receiver, *_refusal(words))

    def _take(self, source: int, header: Int64[Tensor, " n"]) -> None:
        """Do what a message asks for."""
        sent = self._served[source]
        kind, size, *numbers = header.tolist()
        if kind in (_Kind.GOODBYE, _Kind.LEAVE):
            self._gone.add(source)
        if kind == _Kind.LEAVE:
            self._failure = f"rank {source} has left in the midst of its work"
            with contextlib.suppress(RuntimeError):
                _post(self._requests, sent, source, _header(_Kind.ECHO))
        if kind != _Kind.ASK:
            return
        try:
            content = torch.empty(size, dtype=torch.uint8)
            if size:
                self._requests.recv([content], source, _CONTENT).wait()
            sent.wait()
        except RuntimeError as error:  # the others can still be served
            self._gone.add(source)
            self._failure = f"rank {source} is gone: {_words(error)}"
            return
        try:
            answer = self._answer(source, Request(numbers, content)).cpu()
            header = _header(_Kind.ANSWER, answer)
        except Exception as error:  # belongs to the asker
            header, answer = _refusal(_words(error))
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


def _refusal(words: str) -> tuple[Int64[Tensor, " n"], UInt8[Tensor, " bytes"]]:
    """Header and content of an answer that says why there is none."""
    content = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)
    return _header(_Kind.REFUSAL, content), content


def _post(
    group: dist.ProcessGroup,
    sent: _Sent,
    receiver: int,
    header: Int64[Tensor, " n"],
    content: UInt8[Tensor, " bytes"] | None = None,
) -> None:
    """Begin to send a message."""
    sent.tensors.append(header)
    sent.works.append(group.send([header], receiver, _HEADER))
    if content is not None and content.shape[0]:
        sent.tensors.append(content)
        sent.works.append(group.send([content], receiver, _CONTENT))


@contextlib.contextmanager
def _telling(what: str) -> Iterator[None]:
    """Say what a failure of the network means."""
    try:
        yield
    except RuntimeError as error:
        raise OwnerError(f"{what}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """An error of ours as it is; another with its type."""
    return str(error) if isinstance(error, OutsizeError) else f"{type(error).__name__}: {error}"
