"""Whether every launch of several ranks ends, whatever happens to one of them.

    python benchmarks/stress_launches.py --launches 200 --kill-share 0.5 --seed 0 --jobs 8 \\
        --out benchmarks/results

Tiny runs of each kind (`KINDS`) are started by torchrun, some at a time. In a share of them one
rank is killed (SIGKILL) at a random moment: in half of those while the ranks start and join each
other, in half between then and about when such a run ends. A
launch must end within `--bound` seconds after the kill; one in which nobody is killed has ten times
as long, because it does all its work. What a launch came to:

- *finished*: all ranks did their work; the kill, if any, came too late.
- *in one line*: at least one survivor said that it lost the others, and none left a traceback.
- *by the launcher*: torchrun ended the survivors before they began to train, or could say anything.
- *with a traceback*: a survivor ended, but not in one line.
- *hung*: it did not end within the bound; it is killed then.

The exit code is 1 if any launch hung, left a traceback, or failed without a kill.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from outsize.reporting.environment import environment

CLICKS = """
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
[train]
batch_size = 16
epochs = 1
validate_every = 10
log_every = 5
early_stop = false
device = "cpu"
[checkpoint]
every = 8
"""
RETRIEVAL = """
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
[train]
batch_size = 16
epochs = 1
validate_every = 10
log_every = 5
early_stop = false
device = "cpu"
[checkpoint]
every = 8
"""
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
    """One launch, drawn before any begins.

    Attributes:
        number: Which launch.
        kind: A key of `KINDS`.
        victim: The rank to kill; `None` for nobody.
        begun: Whether it is to die after the ranks have begun to train, or before.
        moment: When, as a share of how long that part of such a run takes.
    """

    number: int
    kind: str
    victim: int | None
    begun: bool
    moment: float


@dataclass(frozen=True)
class Ended:
    """What a launch came to; seconds from the kill, or from the start of the ranks, to the end."""

    number: int
    kind: str
    victim: int | None
    outcome: str
    ended_after_s: float
    words: str


def draw_plans(num: int, kill_share: float, ranks: int, seed: int) -> list[Plan]:
    """Launches of all kinds in turn; the first of each kind is left alone and says how long."""
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
    """Starts launches and waits for their end.

    Args:
        folder: For run folders and logs.
        ranks: Of each launch.
        bound_s: How long a launch may take to end.
    """

    def __init__(self, folder: Path, ranks: int, bound_s: float) -> None:
        self.folder = folder
        self.ranks = ranks
        self.bound_s = bound_s
        self._lock = threading.Lock()
        # Of launches without a kill, until they begin to train and from then on.
        self._durations_s: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}

    def run(self, plan: Plan) -> Ended:
        """One launch, from its start to its end."""
        folder = self.folder / f"{plan.number:04d}"
        folder.mkdir()
        text, settings = KINDS[plan.kind]
        (folder / "run.toml").write_text(text)
        words = [word for setting in settings for word in ("--set", setting)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                    "--nproc-per-node", str(self.ranks), "--redirects", "3",
                    "--log-dir", str(folder / "logs"), "-m", "outsize", "train",
                    str(folder / "run.toml"), "--out", str(folder / "run"), "--json"]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*launcher, *words], **quiet, env=_environment())
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

    def _pids(self, process: subprocess.Popen) -> dict[int, int]:
        """The processes of the ranks, once all are there."""
        found: dict[int, int] = {}
        started = time.monotonic()
        while len(found) < self.ranks and process.poll() is None:
            if time.monotonic() - started > _LONGEST_START_S:
                raise RuntimeError(f"torchrun started {len(found)} of {self.ranks} ranks")
            found = _ranks_of(process.pid)
            time.sleep(_POLL_S)
        return found

    def _kill(self, process: subprocess.Popen, pid: int, after_s: float) -> bool:
        """Kill a rank after so many seconds, unless the launch is over by then."""
        if _ends_within(process, after_s):
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _moment_s(self, plan: Plan) -> float:
        """When to kill, by how long launches before this one took."""
        while True:
            with self._lock:
                every = [pair for known in self._durations_s.values() for pair in known]
                known = self._durations_s[plan.kind] or every
            if known:
                # The last third of a run is rank 0 alone, which writes the report.
                share = 0.67 if plan.begun else 1.0
                return share * plan.moment * statistics.mean(pair[plan.begun] for pair in known)
            time.sleep(_POLL_S)


def _wait_for(path: Path, process: subprocess.Popen) -> None:
    """Wait until a launch has written a file, or is over."""
    while not path.exists() and process.poll() is None:
        time.sleep(_POLL_S)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _ranks_of(launcher: int) -> dict[int, int]:
    """Rank → process, of those that a launcher has started so far."""
    found: dict[int, int] = {}
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if line.startswith(b"RANK="):
                    found[int(line.removeprefix(b"RANK="))] = int(child)
    except (FileNotFoundError, ProcessLookupError):
        return {}  # one ended while it was looked at
    return found


def _ends_within(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen, pids: dict[int, int]) -> None:
    """Kill a launcher that hangs, and the ranks that it had started and that are still there."""
    alive = {pid for pid in _ranks_of(process.pid).values() if pid in pids.values()}
    process.kill()
    process.wait()
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _said(logs: Path, victim: int | None) -> dict[int, str]:
    """What each rank but the victim wrote to standard error."""
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


def summarize(ended: list[Ended]) -> list[dict]:
    """One line per kind, and one for all."""
    rows: list[dict] = []
    for kind in (*KINDS, "all"):
        chosen = [one for one in ended if kind in (one.kind, "all")]
        after_kill = [one.ended_after_s for one in chosen if one.victim is not None]
        counts = Counter(one.outcome for one in chosen)
        rows.append(
            {
                "kind": kind,
                "launches": len(chosen),
                "killed": len(after_kill),
                **{outcome: counts[outcome] for outcome in OUTCOMES},
                "median_s": round(statistics.median(after_kill), 1) if after_kill else None,
                "longest_s": round(max(after_kill), 1) if after_kill else None,
            }
        )
    return rows


def page(
    facts: dict[str, str], rows: list[dict], command: str, arguments: argparse.Namespace
) -> str:
    """The results as Markdown."""
    titles = ["kind", "launches", "killed", *OUTCOMES, "median s", "longest s"]
    lines = [
        "# Launches of several ranks, some of which lose one\n",
        f"- command: {command}",
        *(f"- {key}: {value}" for key, value in facts.items()),
        f"\n{arguments.ranks} ranks per launch, {arguments.jobs} launches at a time. A rank is "
        "killed (SIGKILL) at a random moment, in half of the cases before they begin to train; "
        f"a launch that has not ended {arguments.bound:.0f} s later has hung. Finished: the kill, "
        "if any, came too late. By the launcher: torchrun ended the survivors before they "
        "began to train. Seconds are from the kill to the end of the launch.\n",
        "| " + " | ".join(titles) + " |",
        "|---|" + "--:|" * (len(titles) - 1),
    ]
    for row in rows:
        cells = ["—" if value is None else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def is_bad(one: Ended) -> bool:
    """Whether a launch ended as none should."""
    alone_and_failed = one.victim is None and one.outcome != "finished"
    return alone_and_failed or one.outcome in ("hung", "with a traceback")


def main() -> int:
    """Launch, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--kill-share", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="launches at a time")
    parser.add_argument("--ranks", type=int, default=3, help="ranks per launch")
    parser.add_argument("--bound", type=float, default=60.0, help="seconds to end in")
    parser.add_argument("--out", type=Path, help="a folder to write stress-launches-cpu.* to")
    parser.add_argument("--keep", type=Path, help="an empty folder for runs and logs, to look at")
    arguments = parser.parse_args()
    plans = draw_plans(arguments.launches, arguments.kill_share, arguments.ranks, arguments.seed)
    with tempfile.TemporaryDirectory() as scratch:
        launches = Launches(arguments.keep or Path(scratch), arguments.ranks, arguments.bound)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            ended: list[Ended] = []
            for one in pool.map(launches.run, plans):
                ended.append(one)
                print(json.dumps(asdict(one)), file=sys.stderr, flush=True)
    facts, rows = environment(), summarize(ended)
    command = (
        f"python benchmarks/stress_launches.py --launches {arguments.launches} --kill-share "
        f"{arguments.kill_share} --seed {arguments.seed} --jobs {arguments.jobs}"
    )
    text = page(facts, rows, command, arguments)
    print(text)
    if arguments.out is not None:
        content = {
            "command": command,
            "environment": facts,
            "rows": rows,
            "launches": [asdict(one) for one in ended],
        }
        stem = arguments.out / "stress-launches-cpu"
        stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        stem.with_suffix(".md").write_text(text)
    return int(any(map(is_bad, ended)))


if __name__ == "__main__":
    sys.exit(main())
