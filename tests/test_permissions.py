"""Files that a user may not read or write, by every command that would."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outsize.cli import COMMANDS, main

NOBODY = 65534
RUN = """
[data]
num_train = 300
num_validation = 100
num_test = 100
largest_vocabulary = 50
num_categorical = 2
[model]
bottom = [4]
top = [4]
[embeddings]
dim = 4
[train]
batch_size = 100
device = "cpu"
[checkpoint]
every = 1
keep = 9
"""
GRID = ["--tables", "hash", "--budgets", "64", "--seeds", "1", "--workers", "0"]


@contextmanager
def without_privileges() -> Iterator[None]:
    """Give up what lets root read and write everything; other users have nothing to give up."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def call(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[object, str]:
    """Exit code and standard error of a command without privileges."""
    with without_privileges(), pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return caught.value.code, capfd.readouterr().err


def refusal(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line in which a command says why it ends, after what it said before."""
    code, err = call(capfd, *words)
    assert code == 2, err
    (line,) = [line for line in err.splitlines() if line.startswith("outsize: ")]
    assert err.splitlines()[-1] == line
    return line


@pytest.fixture(scope="module")
def trained() -> Iterator[Path]:
    """A folder with a run file, a run, an export of it, and a comparison."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run.toml").write_text(RUN)
        for words in (
            ["train", folder / "run.toml", "--out", folder / "run"],
            ["export", folder / "run", folder / "exported"],
            ["compare", folder / "run.toml", *GRID, "--out", folder / "grid"],
        ):
            with pytest.raises(SystemExit) as caught:
                main([str(word) for word in words])
            assert caught.value.code == 0
        yield folder


@pytest.fixture
def place(trained: Path) -> Iterator[Path]:
    """A copy of that folder, which belongs to the user who runs the commands."""
    name = tempfile.mkdtemp()
    folder = Path(name) / "home"
    shutil.copytree(trained, folder)
    last = sorted((folder / "run" / "checkpoint").iterdir())[-1]
    shutil.rmtree(last)  # so that there is something to go on with
    if os.geteuid() == 0:
        for path in (Path(name), folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)
    shutil.rmtree(name)


STEP = "run/checkpoint/step-0000000002"
COMMAND_LINES = {
    "train": ["train", "run.toml", "--out", "new/run"],
    "resume": ["train", "run.toml", "--out", "run", "--resume"],
    "export": ["export", "run", "new/model"],
    "compare": ["compare", "run.toml", *GRID, "--out", "grid"],
    "demo": ["demo", "--quick", "--out", "new/tour"],
}
SAVED = ("manifest.json", "state.json", "log.json", "state.safetensors", "rows.json",
         "rows-00000-of-00001.safetensors")  # fmt: skip
READ_BY_RESUME = ("run", "run/config.toml", "run/metrics.jsonl", "run/.lock", "run/checkpoint",
                  STEP, *(f"{STEP}/{name}" for name in SAVED))  # fmt: skip
CASES = [
    *(("resume", path, 0o000) for path in READ_BY_RESUME),
    *(("export", path, 0o000) for path in READ_BY_RESUME
      if path not in ("run/metrics.jsonl", "run/.lock", f"{STEP}/log.json")),
    *(("resume", path, 0o555) for path in ("run", "run/checkpoint")),
    ("resume", "run/.lock", 0o444),
    *((command, "run.toml", 0o000) for command in ("train", "resume", "compare")),
    *((command, "new", mode) for command in ("train", "export", "demo") for mode in (0o000, 0o555)),
    *(("compare", path, 0o000) for path in ("grid", "grid/cells", "grid/cells/full-0",
      "grid/cells/full-0/config.toml", "grid/cells/full-0/result.json")),
    ("compare", "grid", 0o555),
]  # fmt: skip


@pytest.mark.parametrize(("command", "path", "mode"), CASES)
def test_what_may_not_be_read_or_written_is_one_line(
    place, capfd, monkeypatch, command, path, mode
):
    monkeypatch.chdir(place)
    (place / "new").mkdir()
    if os.geteuid() == 0:
        os.chown(place / "new", NOBODY, NOBODY)
    (place / path).chmod(mode)
    line = refusal(capfd, *COMMAND_LINES[command])
    assert "Permission denied" in line
    assert Path(path).name in line


@pytest.mark.parametrize("command", ["resume", "export", "compare", "train"])
def test_what_may_be_read_and_written_is(place, capfd, monkeypatch, command):
    monkeypatch.chdir(place)
    code, err = call(capfd, *COMMAND_LINES[command])
    assert code == 0, err


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("resume", "run/config.toml"),
        ("resume", "run/metrics.jsonl"),
        ("resume", "run/.lock"),
        ("resume", "run/report.html"),
        *(("resume", f"{STEP}/{name}") for name in ("manifest.json", "state.json", "log.json")),
        ("export", "run/config.toml"),
        ("export", f"{STEP}/rows.json"),
        ("compare", "grid/cells/full-0/config.toml"),
        ("compare", "grid/cells/full-0/result.json"),
        ("compare", "grid/compare.csv"),
    ],
)
def test_a_folder_in_place_of_a_file_is_one_line(place, capfd, monkeypatch, command, path):
    monkeypatch.chdir(place)
    (place / path).unlink()
    (place / path).mkdir()
    assert Path(path).name in refusal(capfd, *COMMAND_LINES[command])


@pytest.mark.parametrize("command", ["resume", "export"])
@pytest.mark.parametrize("path", ["run", "run/checkpoint", STEP])
def test_a_file_in_place_of_a_folder_is_one_line(place, capfd, monkeypatch, command, path):
    monkeypatch.chdir(place)
    shutil.rmtree(path)
    (place / path).write_text("")
    assert Path(path).name in refusal(capfd, *COMMAND_LINES[command])


def test_a_file_that_our_own_code_lacks_keeps_its_traceback(monkeypatch, tmp_path):
    def broken() -> dict:
        (tmp_path / "absent").read_text()
        return {}

    monkeypatch.setitem(COMMANDS, "broken", broken)
    with pytest.raises(FileNotFoundError):
        main(["broken"])
