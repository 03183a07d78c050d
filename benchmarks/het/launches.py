"""Launches of several ranks by torchrun, one of which may be killed at a random moment."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_TRAIN = """[train]
batch_size = 16
epochs = 1
validate_every = 10
log_every = 5
early_stop = false
device = "cpu"
[checkpoint]
every = 8
"""
CLICKS = f"""
[data]
num_train = 3_000
num_validation = 200
num_test = 100
num_dense = 3
num_categorical = 4
largest_vocabulary = 200
[model]
bottom = [8]
top = [8]
[embeddings]
dim = 4
[optimizer]
kind = "adagrad"
{_TRAIN}"""
RETRIEVAL = f"""
[data]
kind = "synthetic-interactions"
num_queries = 150
num_items = 60
items_per_query = 10
num_groups = 6
latent_dim = 4
[model]
kind = "two-tower"
dim = 8
hidden = [8]
[negatives]
kind = "cache"
num_negatives = 4
refresh = 0.1
[embeddings]
dim = 4
{_TRAIN}"""
SHARDED = ("embeddings.store=sharded",)
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "replicated": (CLICKS, ()),
    "sharded": (CLICKS, SHARDED),
    "cached": (CLICKS, (*SHARDED, "embeddings.cache.share=0.2")),
    "served": (CLICKS, ("embeddings.store=served",)),
    "retrieval over shards": (RETRIEVAL, SHARDED),
}
OUTCOMES = ("finished", "in one line", "by the launcher", "with a traceback", "hung")
_POLL_S = 0.05
_LONGEST_START_S = 240.0


@dataclass(frozen=True)
class Plan:
    """What one launch will do, drawn before any starts.

    Attributes:
        number: Index of the launch.
        kind: A key of `KINDS`.
        victim: The rank to kill; `None` for none.
        begun: Kill it after the ranks have begun to train, not before.
        moment: When to kill it, as a share of the duration of that part of such a run.
    """

    number: int
    kind: str
    victim: int | None
    begun: bool
    moment: float


@dataclass(frozen=True)
class Ended:
    """How a launch ended.

    Attributes:
        number: Index of the launch.
        kind: A key of `KINDS`.
        victim: The rank that was killed; `None` for none.
        outcome: One of `OUTCOMES`.
        ended_after_s: Seconds from the kill to the end; without a kill, from the start of training.
        words: The last words of the ranks on standard error, if the launch failed.
    """

    number: int
    kind: str
    victim: int | None
    outcome: str
    ended_after_s: float
    words: str


def draw_plans(num: int, kill_share: float, ranks: int, seed: int) -> list[Plan]:
    """Draw launches of all kinds in turn; the first of each kind has no kill and is timed."""
    draws = random.Random(seed)
    plans: list[Plan] = []
    for number in range(num):
        kind = list(KINDS)[number % len(KINDS)]
        is_killed = draws.random() < kill_share and number >= len(KINDS)
        victim = draws.randrange(ranks)
        begun = draws.random() < 0.5
        plans.append(Plan(number, kind, victim if is_killed else None, begun, draws.random()))
    return plans


class Launches:
    """Start launches and wait for their end.

    Args:
        folder: Folder for run folders and logs.
        ranks: Ranks per launch.
        bound_s: Seconds within which a launch must end after a kill.
    """

    def __init__(self, folder: Path, ranks: int, bound_s: float) -> None:
        self.folder = folder
        self.ranks = ranks
        self.bound_s = bound_s
        self._lock = threading.Lock()
        # Seconds of launches without a kill: until they begin to train, and from then on.
        self._durations_s: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}

    def run(self, plan: Plan) -> Ended:
        """Run one launch from start to end."""
        folder = self.folder / f"{plan.number:04d}"
        folder.mkdir()
        text, settings = KINDS[plan.kind]
        (folder / "run.toml").write_text(text)
        words = [word for setting in settings for word in ("--set", setting)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                    "--nproc-per-node", str(self.ranks), "--redirects", "3",
                    "--log-dir", str(folder / "logs"), "-m", "outsize", "train",
                    str(folder / "run.toml"), "--out", str(folder / "run"), "--json"]  # fmt: skip
        process = subprocess.Popen(
            [*launcher, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        pids = self._pids(process)
        started = began = time.monotonic()
        hit = False
        if plan.victim is None or plan.begun:
            _wait_for(folder / "run" / "config.toml", process)
            began = time.monotonic()
        if plan.victim is not None:
            hit = self._kill(process, pids[plan.victim], self._moment_s(plan))
            began = time.monotonic()
        hung = not _ends_within(process, self.bound_s if hit else 10 * self.bound_s)
        elapsed_s = time.monotonic() - began
        if hung:
            _end(process, pids)
        elif plan.victim is None and process.returncode == 0:
            with self._lock:
                self._durations_s[plan.kind].append((began - started, elapsed_s))
        said = _said(folder / "logs", None if not hit else plan.victim)
        return Ended(
            plan.number,
            plan.kind,
            plan.victim if hit else None,
            "hung" if hung else _outcome(process.returncode, said),
            round(elapsed_s, 2),
            " | ".join(text[-500:] for text in said.values() if text) if process.returncode else "",
        )

    def _pids(self, process: subprocess.Popen[bytes]) -> dict[int, int]:
        """Rank → process id, once all ranks are there."""
        found: dict[int, int] = {}
        started = time.monotonic()
        while len(found) < self.ranks and process.poll() is None:
            if time.monotonic() - started > _LONGEST_START_S:
                raise RuntimeError(f"torchrun started {len(found)} of {self.ranks} ranks")
            found = _ranks_of(process.pid)
            time.sleep(_POLL_S)
        return found

    def _kill(self, process: subprocess.Popen[bytes], pid: int, after_s: float) -> bool:
        """Kill a rank after `after_s` seconds; false if the launch is over by then."""
        if _ends_within(process, after_s):
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _moment_s(self, plan: Plan) -> float:
        """Seconds until the kill, from the durations of earlier launches."""
        while True:
            with self._lock:
                every = [pair for known in self._durations_s.values() for pair in known]
                known = self._durations_s[plan.kind] or every
            if known:
                # The last third of a run is rank 0 alone, which writes the report.
                share = 0.67 if plan.begun else 1.0
                return share * plan.moment * statistics.mean(pair[plan.begun] for pair in known)
            time.sleep(_POLL_S)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until a launch has written a file or has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(_POLL_S)


def _ranks_of(launcher: int) -> dict[int, int]:
    """Rank → process id, for the ranks that a launcher has started so far."""
    found: dict[int, int] = {}
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if line.startswith(b"RANK="):
                    found[int(line.removeprefix(b"RANK="))] = int(child)
    except (FileNotFoundError, ProcessLookupError):
        return {}  # one ended meanwhile
    return found


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes], pids: dict[int, int]) -> None:
    """Kill a launcher that hangs, and those of its ranks that are still alive."""
    alive = {pid for pid in _ranks_of(process.pid).values() if pid in pids.values()}
    process.kill()
    process.wait()
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _said(logs: Path, victim: int | None) -> dict[int, str]:
    """Rank → what it wrote to standard error, for all ranks but the victim."""
    texts: dict[int, str] = {}
    for path in sorted(logs.glob("*/attempt_0/*/stderr.log")):
        rank = int(path.parent.name)
        if rank != victim:
            texts[rank] = path.read_text(errors="replace").strip()
    return texts


def _outcome(returncode: int, said: dict[int, str]) -> str:
    if returncode == 0:
        return "finished"
    if any("Traceback" in text or "terminate called" in text for text in said.values()):
        return "with a traceback"
    if any(text.startswith("outsize: ") or "\noutsize: " in text for text in said.values()):
        return "in one line"
    return "by the launcher"
