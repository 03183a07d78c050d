"""Real processes for tests, forked from one that has already imported what they need.

Importing torch takes seconds of CPU time per process, which is most of what a tiny run takes.
What is under test is the same: a process of its own, its exit status, its output, signals to it,
and gloo between ranks. Only who starts it differs; tests of torchrun itself use torchrun.
"""

import contextlib
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from pathlib import Path

import torch.distributed as dist

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    ["numba", "torch._dynamo", "torch.nn.parallel", "pyarrow.parquet",
     "outsize.cli", "outsize.compare", "outsize.training.run", "outsize.training.tasks.retrieval"]
)  # fmt: skip
_POLL_S, _GRACE_S = 0.02, 30


class Started:
    """A Python process that runs; methods and attributes are those of `subprocess.Popen`."""

    def __init__(self, words, env=None, cwd=None):
        """Start `python words...`: `-m module ...`, `-c code ...` or `script ...`.

        `-W error` may come first.
        """
        self._folder = tempfile.mkdtemp(prefix="process-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        names = dict(os.environ if env is None else env)
        words = [str(word) for word in words]
        self._process = _FORKED.Process(
            target=_become, args=(words, names, str(cwd or Path.cwd()), self._folder)
        )
        self._process.start()

    @property
    def pid(self):
        return self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        self._process.join(0)
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("python", timeout)
        return self.returncode

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def printed(self, pattern, timeout=120):
        """The first group of a pattern, once it stands in what was printed to standard error."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            errors = Path(self._folder, "err")
            text = errors.read_text() if errors.exists() else ""
            if found := re.search(pattern, text):
                return found[1]
            assert self.returncode is None, text
            time.sleep(_POLL_S)
        raise subprocess.TimeoutExpired("python", timeout)

    def communicate(self, timeout=None):
        """What it printed, once it has ended: standard output and standard error."""
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        output, errors = (Path(self._folder, name).read_text() for name in ("out", "err"))
        return output, errors


class Ranks:
    """The ranks of one run; if one fails, the others are ended, as torchrun does."""

    def __init__(self, num_ranks, words, env=None, cwd=None):
        names = dict(os.environ if env is None else env)
        # Ports are chosen by who listens, so that no two runs can choose the same.
        self._meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._meeting.port),
                  "TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": str(num_ranks),
                  "LOCAL_WORLD_SIZE": str(num_ranks)}  # fmt: skip
        self.ranks = [
            Started(words, names | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd)
            for rank in range(num_ranks)
        ]

    @property
    def returncode(self):
        """0 if all ranks ended well, 1 if one did not, None while any runs."""
        codes = [rank.poll() for rank in self.ranks]
        return None if None in codes else int(any(codes))

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        for rank in self.ranks:
            rank.send_signal(number)

    def communicate(self, timeout=120):
        """What the ranks printed, one after the other, once all have ended."""
        deadline, ending = time.monotonic() + timeout, False
        while self.returncode is None:
            if not ending and any(rank.poll() for rank in self.ranks):
                self.send_signal(signal.SIGTERM)
                deadline, ending = time.monotonic() + _GRACE_S, True
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired("ranks", timeout)
            time.sleep(_POLL_S)
        printed = [rank.communicate() for rank in self.ranks]
        return "".join(output for output, _ in printed), "".join(errors for _, errors in printed)


def run(*words, env=None, cwd=None, timeout=None):
    """Run `python words...` to its end, as `subprocess.run` with captured output would."""
    process = Started(words, env, cwd)
    output, errors = process.communicate(timeout)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def run_ranks(num_ranks, *words, timeout=120):
    """Run `python words...` on several ranks: status, standard output, standard error."""
    ranks = Ranks(num_ranks, words)
    output, errors = ranks.communicate(timeout)
    return ranks.returncode, output, errors


def _become(words, env, cwd, folder):
    """In the new process: run what `python words...` runs, and end as it would."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(folder, name), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    code = 1
    try:
        code = _run_as_main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_as_main(words):
    if words[0] == "-W":
        warnings.simplefilter(words[1])
        words = words[2:]
    option, *rest = words
    try:
        if option == "-m":
            sys.argv, sys.path[0] = rest, ""
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif option == "-c":
            sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, str(Path(option).parent)
            runpy.run_path(option, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    return 0
