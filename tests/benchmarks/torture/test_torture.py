"""The campaign: one trial of each kind, and that it notices what it is there to notice."""

import dataclasses
import json
import random
from pathlib import Path

import processes
import pytest
import torch

from benchmarks.torture import histories, negative_histories
from benchmarks.torture.children import Done
from benchmarks.torture.damage import damage
from benchmarks.torture.histories import Setting
from benchmarks.torture.kinds import KINDS
from benchmarks.torture.mutations import edit_text
from benchmarks.torture.runs import first_difference
from benchmarks.torture.trial import TrialFailed
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.stores import CachedStore

REPOSITORY = Path(__file__).parents[3]
CHEAP = 272  # the number of a trial that is a quick one in every kind
BROKEN = """
import sys
from benchmarks.torture.__main__ import main
from benchmarks.torture.kinds import KINDS
from benchmarks.torture.trial import require

def lose(trial, describe):
    describe("something")
    require(False, "it was lost")

KINDS["broken"] = lose
given = ["--only", "broken", "--trial", "3", "--seed", "5", "--out", sys.argv[1]]
sys.exit(main([*given, "--keep", sys.argv[1] + "/kept/here"]))
"""


LONG = """
import signal, sys, time
from pathlib import Path
from benchmarks.torture import children
from benchmarks.torture.trial import TrialFailed

folder = Path(sys.argv[1])

def train():
    try:
        # Also where these tests run in the background of a shell, which ignores the signal.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        (folder / "begun").touch()
        while True:
            sum(range(1000))
    except KeyboardInterrupt:
        raise SystemExit(children.INTERRUPTED)

def hang():
    time.sleep(3600)

child = children.Child(["train"], folder, work=train)
while not (folder / "begun").exists():
    time.sleep(0.01)
done = child.done(0.0, may_take_long=True)
assert done.code == children.INTERRUPTED, done
children.HANG_S = 0.1
try:
    children.Child(["train"], folder, work=hang).done(0.0, may_take_long=True)
except TrialFailed as reason:
    print(reason)
"""


def test_a_long_run_is_interrupted_and_one_that_waits_hangs(tmp_path):
    done = processes.run("-c", LONG, tmp_path, cwd=REPOSITORY)
    assert done.stdout.startswith("train: hung for 0 s"), done.stderr


def test_one_trial_of_each_kind_does_not_fail(tmp_path):
    words = ["-m", "benchmarks.torture", "--trial", CHEAP, "--out", tmp_path]
    done = processes.run(*words, cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "torture-cpu.json").read_text())
    assert {one["kind"] for one in results["trials"]} == set(KINDS)
    assert [row["tried"] for row in results["rows"]] == [*(1 for _ in KINDS), len(KINDS)]
    assert f"| all | {len(KINDS)} |" in (tmp_path / "torture-cpu.md").read_text()


def test_a_trial_that_fails_is_an_exit_code_and_a_command_that_repeats_it(tmp_path):
    done = processes.run("-c", BROKEN, tmp_path, cwd=REPOSITORY)
    assert done.returncode == 1
    assert "python -m benchmarks.torture --seed 5 --only broken --trial 3" in done.stderr
    assert "failed: broken 3 (something): it was lost" in done.stderr
    (_, last) = json.loads((tmp_path / "torture-cpu.json").read_text())["rows"][-2:]
    assert last["failed"] == last["tried"] == 1
    assert (tmp_path / "kept/here/broken-0003").is_dir()
    again = processes.run("-c", BROKEN, tmp_path, cwd=REPOSITORY)
    assert again.returncode == 2
    assert again.stderr.endswith("here is not empty: name another folder\n")


def test_a_traceback_a_signal_or_two_lines_fail_a_trial():
    words = ("train",)
    crashed = Done(words, 1, "", "Traceback (most recent call last):\n  ...\nKeyError: 1")
    for done in (crashed, Done(words, -11, "", ""), Done(words, 2, "", ""),
                 Done(words, 2, "", "outsize: one\noutsize: two"),
                 Done(words, 1, "", "outsize: one")):  # fmt: skip
        with pytest.raises(TrialFailed):
            done.must_end_well_or_in_a_line()
    refused = Done(words, 2, "", "note: a word before\noutsize: no such file\n")
    assert refused.must_end_well_or_in_a_line().refusal == "outsize: no such file"
    with pytest.raises(TrialFailed):
        refused.must_end_well()


def test_trees_that_differ_in_a_bit_differ():
    one = {"a": [torch.tensor([0.0]), 1], "elapsed_s": 1.0}
    assert first_difference(one, {"a": [torch.tensor([0.0]), 1], "elapsed_s": 2.0}) is None
    assert first_difference(one, {"a": [torch.tensor([-0.0]), 1], "elapsed_s": 1.0}) == "/a/0"
    assert first_difference(one, {"a": [torch.tensor([0.0]), 1.0], "elapsed_s": 1.0}) == "/a/1"


def test_the_same_seed_makes_the_same_edits_and_every_file_is_changed(tmp_path):
    for seed in range(40):
        content = b"seed = 1\n[data]\nkind = 'x'\n[train]\nsteps = 3\n"
        edited = [edit_text(content, random.Random(seed)) for _ in range(2)]
        assert edited[0] == edited[1]
        path = tmp_path / "state.json"
        path.write_bytes(content)
        way = damage(path, [path], random.Random(seed))
        assert not path.exists() or path.read_bytes() != content, way


def test_a_negative_cache_that_keeps_other_items_fails_a_history():
    for renews in (False, True):
        history = negative_histories.History(random.Random(0), 3, "fifo", 30)
        history.lists = negative_histories.ListedCache(3, renews)
        steps = ["push", "commit", "sweep", "push"] * 10
        if renews:
            with pytest.raises(TrialFailed, match="other items are held"):
                history.play(steps)
        else:
            history.play(steps)


class Forgetful(CachedStore):
    """Drops each update that is submitted right before a flush."""

    def submit(self, update):
        self._last = update

    def exchange(self, update, ids, clocks=None):
        super().submit(getattr(self, "_last", None))
        self._last = None
        return super().exchange(update, ids, clocks)


class Stale(CachedStore):
    """Reads copies that are older than they may be."""

    def __init__(self, inner, num_rows, read, write, eviction):
        super().__init__(inner, num_rows, read + 1, write, eviction)


class Loses(Setting):
    kind: type[CachedStore] = Forgetful

    def store(self, ranks, rule, dim):
        store = self.kind(
            self.plain(ranks, dim), self.num_slots, self.read, self.write, self.eviction
        )
        store.bind(rule)
        return store


class ReadsTooLate(Loses):
    kind = Stale


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        ("_check_counts", Loses),
        ("_check_sums", Loses),
        ("_check_bits", Loses),
        ("_check_counts", ReadsTooLate),  # sums are compared after a flush
        ("_check_bits", ReadsTooLate),
    ],
)
def test_a_store_that_breaks_its_promises_fails_a_history(check, broken, unchecked_shapes):
    setting = Setting(2, 2, 6, 6, 0, 0, "lru", "float32", "seed")
    kept = broken(**dataclasses.asdict(setting))
    work = getattr(histories, check)
    run_as_ranks(2, lambda ranks: work(ranks, setting, 40))
    with pytest.raises(TrialFailed):
        run_as_ranks(2, lambda ranks: work(ranks, kept, 40))
