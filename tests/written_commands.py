"""Commands as pages write them: found in fenced blocks, and run in a folder."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import urllib.request
from pathlib import Path

import processes

from outsize.bench.registry import BENCHMARKS
from outsize.training.strict_toml import read_toml

REPOSITORY = Path(__file__).parent.parent
_DOCS = sorted(str(path.relative_to(REPOSITORY)) for path in REPOSITORY.glob("docs/**/*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", *_DOCS]
NAMES = ("outsize", "torchrun", "python", "make", "pip", "curl", "tensorboard", "wandb", "sudo")
_FENCED = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
SMALL = {
    "synthetic": ["data.num_train=600", "data.num_validation=200", "data.num_test=200",
                  "data.largest_vocabulary=100", "train.batch_size=256", "train.epochs=1"],
    "synthetic-interactions": ["data.num_queries=100", "data.num_items=60",
                               "data.items_per_query=8", "train.batch_size=256",
                               "train.epochs=1"],
    "pydocs": ['data.packages=["logging", "tarfile"]', "data.max_functions=200", "data.test=0.2",
               "train.batch_size=64", "train.epochs=1"],
    "synthetic-graph": ["data.num_nodes=900", "train.epochs=1"],
    "tabular": ["train.epochs=1"],
}  # fmt: skip


def fenced(page):
    """(language, text) of every fenced block of a page."""
    text = (REPOSITORY / page).read_text()
    return [(language, block) for _, language, block in _FENCED.findall(text)]


def lines_of(block):
    """The commands of a block, each on one line, without comments."""
    joined = block.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in joined.splitlines()]
    return [line for line in lines if line.strip()]


def is_command(line):
    """Whether a line of a block begins with a program that pages call."""
    words = [word for word in line.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    return bool(words) and (words[0] in NAMES or words[0].endswith("/python"))


def small(path):
    """Settings that make a run small, whichever data it is on."""
    return SMALL.get(read_toml(path).get("data", {}).get("kind", "synthetic"), [])


class Shell:
    """Runs written commands one after the other in a folder, each as a process.

    Runs are made small, benchmarks quick and plans short. What needs root, a network or a package
    that is not installed is checked as far as it goes without.
    """

    def __init__(self, folder):
        self.folder = folder
        self._env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        self._server = self._port = None

    def run(self, line):
        """Run one line; an assertion fails if it does."""
        words = shlex.split(line, comments=True)
        env = {}
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            name, _, env[name] = words.pop(0).partition("=")
        words = [found for word in words for found in self._expanded(word)]
        first = Path(words[0]).name
        done = getattr(self, f"_{first}")(words[1:], {**self._env, **env})
        assert done is None or done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def close(self):
        """Stop a server that was started."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(60)

    def _expanded(self, word):
        found = sorted(self.folder.glob(word)) if "*" in word else []
        return [str(path.relative_to(self.folder)) for path in found] or [word]

    def _outsize(self, words, env, ranks=1):
        if words[0] == "serve":
            return self._serve(words, env)
        if any(word.startswith("log.wandb=") for word in words) and not _has("wandb"):
            return None
        if "cuda" in words:
            assert words[1] in BENCHMARKS
            return self._helped(["outsize", words[0]], words, env)
        words = ["-m", "outsize", *words, *self._less(words)]
        if ranks == 1:
            return processes.run(*words, cwd=self.folder, env=env)
        group = processes.Ranks(ranks, words, env, self.folder)
        output, errors = group.communicate()
        return subprocess.CompletedProcess(words, group.returncode, output, errors)

    def _less(self, words):
        files = [self.folder / word for word in words if word.endswith(".toml")]
        if words[0] == "train":
            return [word for path in files for s in small(path) for word in ("--set", s)]
        if words[0] == "compare" and files:  # else it compares finished runs
            sets = [word for path in files for s in small(path) for word in ("--set", s)]
            return [*sets, "--seeds=1"]
        if words[0] == "plan":
            return ["--sample-steps=20"]
        return ["--quick"] if words[0] == "bench" and words[1] != "list" else []

    def _torchrun(self, words, env):
        place = words.index("-m")
        options, (_, program, *rest) = words[:place], words[place:]
        assert program == "outsize"
        assert options[0] == "--nproc-per-node"
        return self._outsize(rest, env, ranks=int(options[1]))

    def _python(self, words, env):
        if words[0] == "-c":
            return processes.run(*words, cwd=self.folder, env=env)
        assert words[0] == "-m"
        return self._helped([words[1]], words, env)

    def _sudo(self, words, env):
        return self._python(words[1:], env)

    def _helped(self, command, words, env):
        """Instead of running it: the options of a command are those that it knows."""
        done = processes.run("-m", *command, "--help", cwd=REPOSITORY, env=env)
        options = [word for word in words if word.startswith("--")]
        unknown = [o for o in options if not re.search(rf"{o}\b", done.stdout + done.stderr)]
        assert unknown == [], f"{command} has no {unknown}"
        return done

    def _make(self, words, env):
        return subprocess.run(
            ["make", "--dry-run", *words], cwd=REPOSITORY, capture_output=True, text=True
        )

    def _pip(self, words, env):
        extras = read_toml(REPOSITORY / "pyproject.toml")["project"]["optional-dependencies"]
        asked = set(re.findall(r"\[([\w,]+)\]", " ".join(words)))
        assert words[0] == "install"
        assert asked <= set(extras)

    def _tensorboard(self, words, env):
        folder = self.folder / words[words.index("--logdir") + 1]
        assert list(folder.rglob("events.out.tfevents.*"))

    def _wandb(self, words, env):
        assert not _has("wandb") or (self.folder / words[-1]).exists()

    def _serve(self, words, env):
        self.close()
        self._server = processes.Started(
            ["-m", "outsize", *words, "--port", "0"], env, cwd=self.folder
        )
        self._port = self._server.printed(r"http://127\.0\.0\.1:(\d+)")
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=60) as answer:
            assert answer.status == 200

    def _curl(self, words, env):
        assert "127.0.0.1:8000" in words[-1]  # the default port
        url = words[-1].replace(":8000", f":{self._port}")
        data = words[words.index("-d") + 1].encode() if "-d" in words else None
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            assert answer.status == 200


def _has(name):
    return importlib.util.find_spec(name) is not None


def copy_examples(folder):
    """Copy what pages name by relative paths, so that nothing of the repository is overwritten."""
    shutil.copytree(REPOSITORY / "examples", folder / "examples")
    return folder
