"""Commands in processes of their own, forked from one that has imported what they need.

Importing torch takes seconds, which is most of what a tiny run takes. The parent must not have
started threads; hence nothing here uses any.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.trial import TrialFailed

HANG_S = 60.0
"""A process that has not ended after so long, or so long after a kill, hangs."""
INTERRUPTED = 130
"""The exit code of a command that an interrupt ended."""
_COMPUTES_S = 0.5  # of processor time, which nothing takes that waits
_POLL_S = 0.005
_SIGNS_OF_A_CRASH = ("Traceback (most recent call last)", "terminate called", "Fatal Python error")


@dataclass(frozen=True)
class Limits:
    """What a command may use.

    Attributes:
        file_bytes: The size beyond which no file may grow (RLIMIT_FSIZE); `None` for any.
        more_bytes: Address space besides what this process has; `None` for any.
    """

    file_bytes: int | None = None
    more_bytes: int | None = None

    def set(self) -> None:
        """Set the limits of this process."""
        if self.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        if self.more_bytes is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + self.more_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@dataclass(frozen=True)
class Done:
    """How a command ended.

    Attributes:
        words: The command.
        code: Its exit code; negative for a signal.
        out: Its standard output.
        err: Its standard error.
    """

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line in which the command ended; empty if it ended in another way."""
        lines = [line for line in self.err.splitlines() if line.startswith("outsize: ")]
        is_last = bool(lines) and self.err.rstrip().endswith(lines[-1])
        return lines[0] if self.code == 2 and len(lines) == 1 and is_last else ""

    def must_not_crash(self, killed: bool = False) -> Done:
        """Fail the trial if the command printed a traceback, or ended by a signal of its own."""
        for sign in _SIGNS_OF_A_CRASH:
            if sign in self.err:
                raise TrialFailed(f"{' '.join(self.words)}: {self.err.strip()[-1500:]}")
        if self.code < 0 and not killed:
            raise TrialFailed(f"{' '.join(self.words)}: ended by signal {-self.code}")
        return self

    def must_end_well(self) -> Done:
        """Fail the trial unless the command did its work."""
        self.must_not_crash()
        if self.code:
            raise TrialFailed(f"{' '.join(self.words)}: exit code {self.code}: {self.err[-600:]}")
        return self

    def must_end_well_or_in_a_line(self) -> Done:
        """Fail the trial unless the command did its work or refused it in one line."""
        self.must_not_crash()
        if self.code and not self.refusal:
            raise TrialFailed(
                f"{' '.join(self.words)}: exit code {self.code}, not in one line: {self.err[-600:]}"
            )
        return self


class Child:
    """An `outsize` command that runs.

    Args:
        words: The command, without the program's name.
        folder: Its working folder.
        env: Variables of the environment besides those of this process.
        limits: What it may use.
        work: What it does in place of the command, which is then only its name.
        printed: A folder for what it prints; by default its working folder.
    """

    def __init__(
        self,
        words: Sequence[object],
        folder: Path,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        work: Callable[[], object] | None = None,
        printed: Path | None = None,
    ) -> None:
        self.words = tuple(map(str, words))
        self._work = work
        self.code: int | None = None
        number = time.monotonic_ns()
        self._printed = [(printed or folder) / f".{stream}-{number}" for stream in ("out", "err")]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(folder, env or {}, limits or Limits())

    def _become(self, folder: Path, env: Mapping[str, str], limits: Limits) -> None:
        """In the new process: run the command, and end as it does."""
        code = 1
        try:
            for number, path in zip((1, 2), self._printed, strict=True):
                file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                os.dup2(file, number)
            os.chdir(folder)
            os.environ.update(env)
            limits.set()
            code = _run_command(list(self.words), self._work)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> bool:
        """Send a signal; false if it has ended before."""
        if self.poll() is not None:
            return False
        os.kill(self.pid, number)
        return True

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end; false if it still runs after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def done(self, seconds: float = HANG_S, *, may_take_long: bool = False) -> Done:
        """How it ended; one that does not end is killed, and fails the trial.

        Args:
            seconds: How long it may take.
            may_take_long: One that still computes then does not hang: it is interrupted, and must
                end in order.
        """
        has_ended = self.ends_within(seconds)
        if not has_ended and may_take_long and self._computes_within(HANG_S):
            self.kill(signal.SIGINT)
            has_ended = self.ends_within(HANG_S)
        if not has_ended:
            self.kill()
            self.ends_within(HANG_S)
            said = self._said(1)[-600:]
            raise TrialFailed(f"{' '.join(self.words)}: hung for {seconds:.0f} s: {said}")
        assert self.code is not None
        found = Done(self.words, self.code, self._said(0), self._said(1))
        for path in self._printed:
            path.unlink(missing_ok=True)
        return found

    def _computes_within(self, seconds: float) -> bool:
        """Whether the command takes processor time, or ends, within so many seconds."""
        known, deadline = _processor_s(self.pid), time.monotonic() + seconds
        while self.poll() is None and _processor_s(self.pid) < known + _COMPUTES_S:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _said(self, stream: int) -> str:
        path = self._printed[stream]
        return path.read_text(errors="replace") if path.exists() else ""


class Ranks:
    """The same command on several ranks, which meet as those of torchrun do.

    Args:
        num_ranks: Number of ranks; 1 for a plain process.
        words: The command.
        folder: Its working folder.
        limits: What each rank may use.
        printed: As for `Child`.
    """

    def __init__(
        self,
        num_ranks: int,
        words: Sequence[object],
        folder: Path,
        limits: Limits | None = None,
        printed: Path | None = None,
    ) -> None:
        self._meeting: int | None = None
        port = 0
        if num_ranks > 1:
            self._meeting, port = _host_meeting()
        names = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        self.ranks: list[Child] = []
        for rank in range(num_ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **names} if num_ranks > 1 else {}
            self.ranks.append(Child(words, folder, own, limits, printed=printed))

    def done(self, seconds: float = HANG_S) -> list[Done]:
        """How each rank ended; if one fails, the others have `seconds` to end by themselves."""
        deadline = time.monotonic() + seconds
        try:
            return [rank.done(max(0.0, deadline - time.monotonic())) for rank in self.ranks]
        finally:
            self.end()

    def end(self) -> None:
        """Kill what still runs."""
        for rank in self.ranks:
            if rank.kill():
                rank.ends_within(HANG_S)
        if self._meeting is not None:
            os.kill(self._meeting, signal.SIGKILL)
            os.waitpid(self._meeting, 0)
            self._meeting = None


def call(folder: Path, *words: object, limits: Limits | None = None) -> Done:
    """Run a command in one process to its end."""
    return Child(words, folder, limits=limits).done()


def _processor_s(pid: int) -> float:
    """The processor time that a process has taken."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def _host_meeting() -> tuple[int, int]:
    """Start a process at which ranks meet, on a port that it chooses; its id and the port."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        os.close(reading)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode())
        os.close(writing)
        signal.pause()
    os.close(writing)
    port = int(os.read(reading, 100))
    os.close(reading)
    return pid, port


def call_function(folder: Path, name: str, work: Callable[[], object]) -> Done:
    """Call a function in a process of its own; its errors end it as those of a command do."""
    return Child([name], folder, work=work).done()


def _run_command(words: list[str], work: Callable[[], object] | None) -> int:
    from outsize.cli import main
    from outsize.errors import OutsizeError

    sys.argv = ["outsize", *words]
    try:
        if work is not None:
            work()
        else:
            main(words)
    except OutsizeError as error:
        print(f"outsize: {error}", file=sys.stderr)
        return 2
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    return 0
