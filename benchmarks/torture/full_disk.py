"""Full disks: one line, nothing half-written, and the work goes on once there is room."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from benchmarks.torture.children import Done, Limits, Ranks
from benchmarks.torture.commands import COMMANDS, copy_inputs, done_by, finish, require_same
from benchmarks.torture.runs import require_equal
from benchmarks.torture.scenarios import SCENARIOS, go_on, prepare, reference_of
from benchmarks.torture.small_disk import SmallDisk
from benchmarks.torture.trial import REFUSED, SURVIVED, Trial, require
from outsize.checkpoint import list_checkpoints, load_checkpoint

_LEAST_FILE_BYTES = 4096  # what a command prints must fit

Fill = Callable[[list[Path]], Limits]
"""Takes what an undisturbed command wrote; makes the disk too small for a part of it."""


def run(trial: Trial, describe: Callable[[str], None]) -> tuple[str, str]:
    """Let a command meet a full disk at a random write, then make room and let it go on."""
    disk_folder = trial.folder / "disk"
    disk_folder.mkdir()
    way = trial.draw.choice(["bytes", "bytes", "files", "file size"])
    disk = None if way == "file size" else SmallDisk(disk_folder)
    describe(f"too few {way}" if disk is not None else "a limit on the size of files")

    def fill(written: list[Path]) -> Limits:
        share = trial.draw.uniform(0.0, 1.0)
        sizes = [path.stat().st_size for path in written if path.is_file()]
        if disk is None:
            most = max(max(sizes), _LEAST_FILE_BYTES)
            return Limits(file_bytes=int(_LEAST_FILE_BYTES + share**2 * most))
        if way == "files":
            disk.leave_files(int(share * len(written)))
        else:
            pages = sum(-(-size // 4096) for size in sizes) + len(written)
            disk.leave_bytes(int(share * 4096 * pages))
        return Limits()

    work = trial.draw.choice([_train, _train, _run_command])
    line = work(trial, describe, disk_folder, fill, disk)
    return (REFUSED, line) if line else (SURVIVED, "")


def _train(
    trial: Trial, describe: Callable[[str], None], folder: Path, fill: Fill, disk: SmallDisk | None
) -> str:
    name = trial.draw.choice(["click over cached shards", "retrieval with cached negatives",
                              "click with encoding"])  # fmt: skip
    num_ranks = trial.draw.choice([1, 2])
    describe(f"{name}, {num_ranks} ranks")
    reference = reference_of(trial, name, num_ranks)
    words = prepare(folder, SCENARIOS[name])
    written = [path for path in reference.rglob("*") if path.name not in ("clicks.csv", "run.toml")]
    limits = fill(written)
    found = Ranks(num_ranks, words, folder, limits, printed=trial.folder).done()
    line = _line_of(found)
    _require_clean(folder)
    for checkpoint in list_checkpoints(folder / "run" / "checkpoint"):
        load_checkpoint(checkpoint)
    if disk is not None:
        disk.make_large()
    if line:
        for done in Ranks(num_ranks, go_on(words, folder), folder, printed=trial.folder).done():
            done.must_end_well()
    require_equal(folder / "run", reference / "run")
    return line


def _run_command(
    trial: Trial, describe: Callable[[str], None], folder: Path, fill: Fill, disk: SmallDisk | None
) -> str:
    name = trial.draw.choice(list(COMMANDS))
    base = done_by(trial, name)
    describe(name)
    copy_inputs(name, base, folder)
    out = base / COMMANDS[name].out
    limits = fill([out, *out.rglob("*")])
    line = _line_of(Ranks(1, COMMANDS[name].words, folder, limits, printed=trial.folder).done())
    _require_clean(folder)
    if line and name != "compare":
        require(not (folder / COMMANDS[name].out).exists(), "half of the output was left")
    if disk is not None:
        disk.make_large()
    finish(name, folder)
    require_same(name, folder, base)
    shutil.rmtree(folder, ignore_errors=True)
    return line


def _line_of(found: list[Done]) -> str:
    """The line in which a command was refused; empty if it did its work."""
    for done in found:
        done.must_not_crash()
    if not any(done.code for done in found):
        return ""
    lines = [done.refusal for done in found if done.refusal]
    require(bool(lines), f"not in one line: {[(done.code, done.err[-600:]) for done in found]}")
    return lines[0]


def _require_clean(folder: Path) -> None:
    """Nothing half-written; an encoding that goes on later may keep its finished pass."""
    left = [path for path in folder.rglob("*partial*") if ".outsize-cache" not in path.parts]
    require(not left, f"left behind: {[str(path.relative_to(folder)) for path in left]}")
