from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import outsize
from outsize.checkpoint import (
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from outsize.errors import CheckpointError, WriteError
from outsize.files import append_line, make_partial, whole_file, write_text_atomically

FILES = ("state.safetensors", "state.json", "manifest.json")
NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
SMALL_NUMBERS = (torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool)
SHAPES = ((), (1,), (3,), (0,), (2, 0, 3), (2, 3, 5))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda node: st.lists(node, max_size=3) | st.dictionaries(st.text(), node, max_size=3),
    max_leaves=10,
)


def round_trip(state: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        return load_checkpoint(save_checkpoint(Path(root), 1, state))


def same_bits(a: Tensor, b: Tensor) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    first, second = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(first, second)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def saved(tmp_path):
    state = {
        "step": 7,
        "weights": torch.arange(24, dtype=torch.float32),
        "ids": torch.arange(5),
        "mask": torch.tensor([True, False, True]),
    }
    return save_checkpoint(tmp_path, 7, state)


@pytest.mark.parametrize("dtype", NUMBERS + SMALL_NUMBERS, ids=str)
def test_tensors_of_every_type_and_shape_come_back_bit_for_bit(dtype):
    generator = torch.Generator().manual_seed(0)
    state = {}
    for shape in SHAPES:
        values = torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator)
        state[str(shape)] = values.to(dtype)

    loaded = round_trip(state)

    assert list(loaded) == list(state)
    assert all(same_bits(loaded[name], state[name]) for name in state)


def test_tensors_of_odd_sizes_may_precede_wider_types():
    state = {
        "mask": torch.tensor([True, False, True]),
        "wide": torch.tensor([0.1, 0.2], dtype=torch.float64),
        "byte": torch.tensor(7, dtype=torch.uint8),
        "ids": torch.tensor([2**62, -1]),
    }

    loaded = round_trip(state)

    assert all(same_bits(loaded[name], state[name]) for name in state)


def test_values_that_are_no_numbers_keep_their_bits():
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 1], dtype=torch.int32)

    loaded = round_trip({"odd": bits.view(torch.float32)})

    assert torch.equal(loaded["odd"].view(torch.int32), bits)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[1:, 1:],
        lambda t: t[0].expand(4, -1),
        lambda t: t.clone().requires_grad_() * 2,
        torch.nn.Parameter,
    ],
    ids=["transposed", "strided", "inner", "expanded", "with gradient", "parameter"],
)
def test_views_and_parameters_are_saved_as_what_they_show(view: Callable[[Tensor], Tensor]):
    tensor = view(torch.arange(24.0).reshape(4, 6))

    loaded = round_trip({"tensor": tensor})["tensor"]

    assert same_bits(loaded, tensor.detach())
    assert not loaded.requires_grad


def test_tensors_keep_their_place_in_lists_and_dicts():
    first, second, third = torch.tensor(1), torch.tensor([2.0]), torch.tensor([], dtype=torch.int8)
    state: dict[str, Any] = {
        "model": {"a.weight": first, "": {"ü": [second, None, {"x": third}]}},
        "empty": [{}, [], None],
        "tuple": (1, second),
    }

    loaded = round_trip(state)

    assert repr(loaded) == repr({**state, "tuple": [1, second]})


def test_keys_with_slashes_do_not_run_together():
    state = {
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2), "/c": torch.tensor(3)},
        "a/": {"c": torch.tensor(4)},
    }

    assert repr(round_trip(state)) == repr(state)


def test_a_dict_that_looks_like_a_tensor_is_not_taken_for_one():
    state = {"a": {"__tensor__": "b"}}

    with contextlib.suppress(TypeError):  # to refuse it is as good
        assert round_trip(state) == state


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_plain_values_come_back_with_their_types(state):
    assert repr(round_trip(state)) == repr(state)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, np.ones(2), torch.float32])
def test_a_value_that_is_not_plain_is_refused_with_its_place(tmp_path, value):
    with pytest.raises(TypeError, match=f"{type(value).__name__}.*/a/0/b"):
        save_checkpoint(tmp_path, 1, {"a": [{"b": value}]})


def test_a_type_of_tensor_that_cannot_be_saved_is_refused_with_its_place(tmp_path):
    with pytest.raises(TypeError, match=r"complex64.*/a/b"):
        save_checkpoint(tmp_path, 1, {"a": {"b": torch.zeros(2, dtype=torch.complex64)}})


@pytest.mark.parametrize("key", [1, None, ("a", "b"), 0.5])
def test_a_key_that_is_no_string_is_refused_with_its_place(tmp_path, key):
    with pytest.raises(TypeError, match=f"'/a'.*{re.escape(repr(key))}"):
        save_checkpoint(tmp_path, 1, {"a": {key: 1}})


def test_a_refused_state_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 1, {"a": object()})

    assert names_in(tmp_path) == set()


def test_the_tensors_are_a_safetensors_file(tmp_path):
    weight, mask = torch.arange(6.0).reshape(3, 2), torch.tensor([True])

    folder = save_checkpoint(tmp_path, 1, {"model": {"w": weight}, "list": [mask], "step": 1})
    tensors = load_file(folder / "state.safetensors")

    assert sorted(tensors) == ["/list/0", "/model/w"]
    assert same_bits(tensors["/model/w"], weight)
    assert same_bits(tensors["/list/0"], mask)


def test_changing_what_was_loaded_does_not_change_the_checkpoint(saved):
    load_checkpoint(saved)["weights"].zero_()

    assert torch.equal(load_checkpoint(saved)["weights"], torch.arange(24.0))


def test_what_was_loaded_outlives_the_checkpoint(saved):
    loaded = load_checkpoint(saved)
    shutil.rmtree(saved)

    assert torch.equal(loaded["weights"], torch.arange(24.0))


def test_a_step_that_is_saved_already_is_left_as_it_is(tmp_path):
    folder = save_checkpoint(tmp_path, 3, {"a": 1})

    assert save_checkpoint(tmp_path, 3, {"a": 2}) == folder
    assert load_checkpoint(folder) == {"a": 1}


@pytest.mark.parametrize("keep", [1, 2, 9])
def test_a_step_whose_state_has_changed_is_saved_again_after_it(tmp_path, keep):
    for number in (1, 2, 3):
        save_checkpoint(tmp_path, 3, {"a": number}, keep, again=True)
        save_checkpoint(tmp_path, 3, {"a": 0}, keep)

        latest = latest_checkpoint(tmp_path)
        assert latest is not None
        assert load_checkpoint(latest) == {"a": number}
    save_checkpoint(tmp_path, 4, {"a": 4}, keep)

    kept = [load_checkpoint(path)["a"] for path in list_checkpoints(tmp_path)]
    assert kept == [1, 2, 3, 4][-keep:]


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_the_newest_checkpoints_are_kept(tmp_path, keep):
    steps = [1, 9, 10, 99, 100]

    for step in steps:
        save_checkpoint(tmp_path / "new" / "root", step, {"step": step}, keep=keep)

    kept = [load_checkpoint(path)["step"] for path in list_checkpoints(tmp_path / "new" / "root")]
    assert kept == steps[-keep:]


def test_the_latest_checkpoint_has_the_highest_step(tmp_path):
    for step in (2, 10, 9):
        save_checkpoint(tmp_path, step, {"step": step})

    latest = latest_checkpoint(tmp_path)

    assert latest is not None
    assert load_checkpoint(latest) == {"step": 10}


def test_a_folder_without_checkpoints_has_no_latest(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None
    assert list_checkpoints(tmp_path / "absent") == []


def test_leftovers_of_a_crash_are_ignored_and_removed(tmp_path):
    folder = save_checkpoint(tmp_path, 3, {"a": 1})
    leftover = tmp_path / "step-0000000004.partial"
    shutil.copytree(folder, leftover)
    (tmp_path / "notes.txt").write_text("mine")

    assert list_checkpoints(tmp_path) == [folder]
    assert latest_checkpoint(tmp_path) == folder
    assert names_in(tmp_path) == {folder.name, "notes.txt"}


def test_a_leftover_does_not_stop_its_step_from_being_saved(tmp_path):
    leftover = tmp_path / "step-0000000004.partial"
    leftover.mkdir()
    (leftover / "unexpected").write_text("cut sho")

    folder = save_checkpoint(tmp_path, 4, {"a": 1})

    assert load_checkpoint(folder) == {"a": 1}
    assert names_in(folder) == set(FILES)
    assert names_in(tmp_path) == {folder.name}


def test_no_folder_is_removed_that_only_has_a_similar_name(tmp_path):
    save_checkpoint(tmp_path, 3, {"a": 1})
    for name in ("step-notes.partial", "step-3.partial", "step-0000000004.partial.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("precious")

    latest_checkpoint(tmp_path)
    save_checkpoint(tmp_path, 4, {"a": 1}, keep=1)

    assert len(list(tmp_path.glob("*/thesis.txt"))) == 3


def test_a_folder_in_the_way_of_rows_is_named_and_left_alone(tmp_path):
    store = outsize.LocalStore([outsize.TableSpec("ad", 3, 2)])
    strange = tmp_path / "rows.partial"
    strange.mkdir()
    (strange / "thesis.txt").write_text("precious")

    with pytest.raises(WriteError, match="is in the way") as caught:
        outsize.save_rows(store, tmp_path / "rows")

    assert str(strange) in str(caught.value)
    assert (strange / "thesis.txt").read_text() == "precious"
    (strange / "thesis.txt").rename(strange / ".outsize-partial")  # as a crash leaves it
    outsize.save_rows(store, tmp_path / "rows")
    assert names_in(tmp_path) == {"rows"}
    assert ".outsize-partial" not in names_in(tmp_path / "rows")


@pytest.mark.parametrize("place", ["file", "link"])
def test_checkpoints_in_a_place_that_is_no_folder_are_named(tmp_path, place):
    root = tmp_path / "checkpoint"
    root.write_text("") if place == "file" else root.symlink_to(root)

    for look in (list_checkpoints, latest_checkpoint):
        message = complaint(lambda look=look: look(root))
        assert str(root) in message
        assert "\n" not in message


def complaint(action: Callable[[], object]) -> str:
    """What an error says that a user can mend; nothing where none was raised."""
    try:
        action()
    except (CheckpointError, WriteError) as error:
        return str(error)
    return ""


def refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_named_with_the_way_out(saved, name):
    content = (saved / name).read_bytes()

    for length in (0, 1, len(content) // 2, len(content) - 1):
        (saved / name).write_bytes(content[:length])
        message = refusal(saved)
        assert name in message
        assert "remove this folder" in message


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_way_out(saved, name):
    (saved / name).unlink()

    message = refusal(saved)

    assert name in message
    assert "remove this folder" in message


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_flipped_bit_in_the_state_is_named_with_the_way_out(saved, name):
    content = (saved / name).read_bytes()

    for bit in range(0, len(content) * 8, 29):
        (saved / name).write_bytes(with_flipped_bit(content, bit))
        message = refusal(saved)
        assert name in message
        assert "remove this folder" in message


def test_no_flipped_bit_in_the_manifest_goes_unnoticed(saved):
    content = (saved / "manifest.json").read_bytes()
    unnoticed = []

    for bit in range(len(content) * 8):
        flipped = with_flipped_bit(content, bit)
        (saved / "manifest.json").write_bytes(flipped)
        message = complaint(lambda: load_checkpoint(saved))
        assert "\n" not in message
        if not message:
            unnoticed.append(flipped[bit // 8 - 8 : bit // 8 + 8])

    assert unnoticed == []


def with_flipped_bit(content: bytes, bit: int) -> bytes:
    flipped = bytearray(content)
    flipped[bit // 8] ^= 1 << (bit % 8)
    return bytes(flipped)


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"format": 2}', '{"format": 2, "files": 3}'])
def test_json_that_is_no_manifest_is_damage(saved, text):
    (saved / "manifest.json").write_text(text)

    assert "manifest.json" in refusal(saved)


def test_a_manifest_that_leaves_a_file_out_is_damage(saved):
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["files"]["state.json"]
    (saved / "manifest.json").write_text(json.dumps(manifest))

    assert "manifest.json" in refusal(saved)


@pytest.mark.parametrize("number", [0, 1, 3, "3"])
def test_an_unknown_format_is_named_with_the_way_out(saved, number):
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps({**manifest, "format": number}))

    message = refusal(saved)

    assert f"format {number}" in message
    assert "format 2" in message
    assert re.search("upgrade|install|remove|start a new", message)


def test_a_folder_that_is_absent_is_no_checkpoint(tmp_path):
    refusal(tmp_path / "step-0000000001")


class Malice:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(params=["pickle", "torch"])
def malicious(request, saved, tmp_path):
    """A checkpoint whose tensors are a pickle that its manifest vouches for; and its mark."""
    marker = tmp_path / "executed"
    path = saved / "state.safetensors"
    if request.param == "torch":
        torch.save(Malice(marker), path)
    else:
        path.write_bytes(pickle.dumps(Malice(marker)))
    manifest = json.loads((saved / "manifest.json").read_text())
    content = path.read_bytes()
    manifest["files"][path.name] = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    (saved / "manifest.json").write_text(json.dumps(manifest))
    return saved, marker


def test_a_pickle_in_place_of_tensors_is_not_executed(malicious):
    folder, marker = malicious

    with contextlib.suppress(CheckpointError, SafetensorError):
        load_checkpoint(folder)

    assert not marker.exists()


def test_a_pickle_in_place_of_tensors_is_damage(malicious):
    folder, _ = malicious

    assert "state.safetensors" in refusal(folder)


def run_python(script: str, *arguments: object) -> str:
    source = str(Path(outsize.__file__).parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


WRITE_BEYOND_A_LIMIT = """
import resource, sys
from pathlib import Path
import torch
from outsize.checkpoint import save_checkpoint
from outsize.errors import CheckpointError

root = Path(sys.argv[1])
save_checkpoint(root, 1, {"weights": torch.arange(10)})
# The first limit cuts the tensors short, the second the tree, the third nothing but the manifest.
states = {1000: {"a": torch.zeros(9000)}, 2000: {"a": "x" * 9000}, 150: {}}
for limit, state in states.items():
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save_checkpoint(root, 2, state)
    except CheckpointError as error:
        print(error)
    assert [path.name for path in root.iterdir()] == ["step-0000000001"], list(root.iterdir())
"""


def test_a_write_that_fails_leaves_earlier_checkpoints_and_nothing_else(tmp_path):
    messages = run_python(WRITE_BEYOND_A_LIMIT, tmp_path).splitlines()

    assert len(messages) == 3
    for message in messages:
        assert str(tmp_path / "step-0000000002") in message
        assert "File too large" in message
        assert "resume" in message
    assert torch.equal(load_checkpoint(tmp_path / "step-0000000001")["weights"], torch.arange(10))


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("only root can mount a small file system")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_leaves_earlier_checkpoints_and_nothing_else(small_disk):
    root = small_disk / "checkpoint"
    first = save_checkpoint(root, 1, {"weights": torch.arange(10)})
    weights = torch.arange(2000)
    failures = 0

    # One page more each time, so that every file in turn is the one that does not fit.
    for free_pages in range(12):
        filler = small_disk / "filler"
        filler.write_bytes(b"")
        free = os.statvfs(small_disk).f_bavail
        filler.write_bytes(bytes((free - free_pages) * os.statvfs(small_disk).f_bsize))
        message = complaint(lambda: save_checkpoint(root, 2, {"w": weights, "text": "x" * 5000}))
        if not message:
            break
        failures += 1
        assert f"{root / 'step-0000000002'}: the disk is full" in message
        assert "free disk space and resume" in message
        assert "\n" not in message
        assert names_in(root) == {first.name}
        assert torch.equal(load_checkpoint(first)["weights"], torch.arange(10))

    assert failures >= 3
    assert torch.equal(load_checkpoint(root / "step-0000000002")["w"], weights)


def test_a_full_disk_leaves_the_old_text_and_nothing_else(small_disk):
    path = small_disk / "file.txt"
    path.write_text("old")

    message = complaint(lambda: write_text_atomically(path, "new" * 1_000_000))

    assert message == f"could not write {path}: the disk is full"
    assert path.read_text() == "old"
    assert names_in(small_disk) == {"file.txt"}


def test_a_line_for_a_full_disk_leaves_the_lines_before_it(small_disk):
    path = small_disk / "file.txt"
    append_line(path, "old\n")

    message = complaint(lambda: append_line(path, "new" * 1_000_000 + "\n"))

    assert message == f"could not write to {path}: the disk is full"
    # Part of the new line may be there, but no second line break.
    assert path.read_text().startswith("old\n")
    assert path.read_text().count("\n") == 1


KILL_AT_EVERY_MOMENT = """
import json, os, shutil, signal, sys
from pathlib import Path
import torch
from outsize.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
from outsize.errors import CheckpointError

torch.set_num_threads(1)
base = Path(sys.argv[1])

def state(step):
    return {"step": step, "weights": torch.full((1000,), step)}

def save_and_die(root, moment):
    real_fsync, moments = os.fsync, iter(range(1, 1000))
    def tick(event, *arguments):
        if event in ("open", "fsync") or event.startswith(("os.", "shutil.")):
            if next(moments) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    def fsync(handle):
        tick("fsync")
        real_fsync(handle)
    os.fsync = fsync
    sys.addaudithook(tick)
    save_checkpoint(root, 3, state(3), keep=2)
    os._exit(0)

def is_whole(path):
    try:
        loaded = load_checkpoint(path)
    except CheckpointError:
        return False
    step = int(path.name[5:])
    return loaded["step"] == step and bool((loaded["weights"] == step).all())

outcomes = []
for moment in range(1, 1000):
    root = base / str(moment)
    for step in (1, 2):
        save_checkpoint(root, step, state(step))
    child = os.fork()
    if not child:
        save_and_die(root, moment)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    latest = latest_checkpoint(root)
    outcomes.append({
        "latest": latest.name,
        "latest_is_whole": is_whole(latest),
        "broken": [path.name for path in list_checkpoints(root) if not is_whole(path)],
        "leftovers": [path.name for path in root.iterdir() if "partial" in path.name],
        "next_is_whole": is_whole(save_checkpoint(root, 4, state(4), keep=2)),
        "at_the_end": len(list_checkpoints(root)),
    })
    shutil.rmtree(root)
print(json.dumps(outcomes))
"""


@pytest.fixture(scope="module")
def crashes(tmp_path_factory):
    """What is found after a kill at each system call of a save that also removes an old one."""
    return json.loads(run_python(KILL_AT_EVERY_MOMENT, tmp_path_factory.mktemp("crashes")))


def test_the_latest_checkpoint_is_whole_whenever_a_save_is_killed(crashes):
    latest = [crash["latest"] for crash in crashes]

    assert all(crash["latest_is_whole"] for crash in crashes)
    # The save takes effect at one moment: before it the old checkpoint, after it the new one.
    assert set(latest) == {"step-0000000002", "step-0000000003"}
    assert latest == sorted(latest)


def test_every_listed_checkpoint_is_whole_whenever_a_save_is_killed(crashes):
    assert [crash["broken"] for crash in crashes] == [[]] * len(crashes)


def test_a_run_goes_on_after_a_save_that_was_killed(crashes):
    assert all(crash["next_is_whole"] for crash in crashes)
    assert all(crash["leftovers"] == [] for crash in crashes)
    assert {crash["at_the_end"] for crash in crashes} == {2}


KILL_NOW_AND_THEN = """
import os, signal, sys, time
from pathlib import Path
import torch
from outsize.checkpoint import latest_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint

torch.set_num_threads(1)
root = Path(sys.argv[1])
step = cut_short = 0
for delay_ms in (3, 5, 8, 13, 21, 34, 55, 89, 11, 17):
    child = os.fork()
    if not child:
        signal.alarm(30)  # no child outlives a parent that failed
        while True:
            step += 1
            save_checkpoint(root, step, {"step": step, "w": torch.full((300_000,), step)}, keep=1)
    while not list_checkpoints(root):
        time.sleep(0.001)
    time.sleep(delay_ms / 1000)
    while delay_ms < 10 and not list(root.glob("*.partial")):
        pass  # some of the kills come right after a save has begun
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    cut_short += len(list(root.glob("*.partial")))
    latest = latest_checkpoint(root)
    loaded = load_checkpoint(latest)
    assert latest.name == f"step-{loaded['step']:010d}" and loaded["step"] >= step
    assert (loaded["w"] == loaded["step"]).all()
    step = loaded["step"]
print(cut_short)
"""


def test_the_latest_checkpoint_loads_after_kills_at_any_time(tmp_path):
    num_cut_short = int(run_python(KILL_NOW_AND_THEN, tmp_path))

    assert num_cut_short > 0, "no kill came in the middle of a save, so nothing was tested"


@pytest.mark.parametrize("text", ["", "short", "line\r\nbreak\n", "ünï 🙂" * 1000])
def test_a_text_is_replaced_whole(tmp_path, text):
    path = tmp_path / "file.txt"
    path.write_text("something longer " * 100)

    write_text_atomically(path, text)

    assert path.read_bytes() == text.encode()
    assert names_in(tmp_path) == {"file.txt"}


def test_a_name_that_is_no_text_is_written_as_escapes(tmp_path):
    write_text_atomically(tmp_path / "file.txt", "a run in " + os.fsdecode(b"caf\xe9"))

    assert (tmp_path / "file.txt").read_text() == r"a run in caf\udce9"


def test_a_folder_whose_name_is_no_text_is_not_made(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")

    with pytest.raises(WriteError, match=r"is no UTF-8, .*: choose another folder"):
        make_partial(folder)

    assert not folder.exists()


def test_a_reader_of_the_old_text_never_sees_the_new(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old " * 5000)

    with path.open() as reader:
        start = reader.read(4)
        write_text_atomically(path, "new")
        assert start + reader.read() == "old " * 5000

    assert path.read_text() == "new"


def test_a_file_whose_writing_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    with pytest.raises(UnicodeEncodeError), whole_file(path) as file:
        file.write(b"new" + "lone surrogate \ud800".encode())

    assert path.read_text() == "old"
    assert names_in(tmp_path) == {"file.txt"}


@pytest.mark.parametrize("write", [write_text_atomically, append_line])
@pytest.mark.parametrize("name", ["absent/file.txt", "file/file.txt", "folder"])
def test_a_place_that_cannot_be_written_to_is_named_in_one_line(tmp_path, write, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()

    message = complaint(lambda: write(tmp_path / name, "text\n"))

    assert str(tmp_path / name) in message
    assert "\n" not in message
    assert names_in(tmp_path) == {"file", "folder"}


def test_lines_are_appended_in_order_and_at_once(tmp_path):
    path = tmp_path / "file.txt"

    append_line(path, "first ü\n")
    assert path.read_bytes() == "first ü\n".encode()
    append_line(path, "second\n")

    assert path.read_bytes() == "first ü\nsecond\n".encode()
