"""Checkpoints whose JSON is well-formed and wrong, with checksums that match."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from retrieval_runs import BASE as RETRIEVAL
from torch import Tensor

import outsize
from outsize.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from outsize.errors import CheckpointError, DataError, OutsizeError
from outsize.training import export_run
from outsize.training.build import build_optimizer
from outsize.training.config import RunConfig
from outsize.training.loop import Loop
from outsize.training.run_folder import RunFolder
from outsize.training.strict_toml import decode, override
from outsize.training.tasks import TASKS
from outsize.verified_folders import read_manifest

CLICK = {
    "data": {"num_train": 600, "num_validation": 100, "num_test": 100, "largest_vocabulary": 50,
             "num_categorical": 2, "num_dense": 2},
    "model": {"bottom": [4], "top": [4]},
    "embeddings": {"dim": 4},
    "train": {"batch_size": 100, "validate_every": 2, "log_every": 3, "device": "cpu"},
    "checkpoint": {"every": 4},
}  # fmt: skip
SHARDED = ("embeddings.store=sharded", "embeddings.cache.share=0.5", "train.validate_every=3",
           "embeddings.optimizer.kind=full-adagrad", "optimizer.kind=sgd",
           "optimizer.momentum=0.9")  # fmt: skip
RUNS = {
    "click": decode(RunConfig, override(CLICK, ["optimizer.kind=adamw"]), "test"),
    "sharded": decode(RunConfig, override(CLICK, SHARDED), "test"),
    "tables": decode(RunConfig, override(CLICK, ["embeddings={kind='tables', dim=4}"]), "test"),
    "retrieval": decode(RunConfig, override(RETRIEVAL, ["train.steps=8"]), "test"),
}
FILES = {
    "click": ("manifest.json", "state.json", "rows.json", "log.json"),
    "sharded": ("manifest.json", "state.json", "rows.json"),
    "tables": ("manifest.json", "state.json"),
    "retrieval": ("manifest.json", "state.json", "rows.json", "cache-00000-of-00001.safetensors"),
}
CASES = [(run, name) for run, names in FILES.items() for name in names]
PER_FILE = 60  # of state.json, and half as many of others
FREE_NAMES = (("loop", "best"), ("loop", "test"), ("loop", "sums"))
"""Objects of `state.json` whose names depend on the task: one that lacks a name is a good one."""
LATER_NAMES = (("counters", "num_pushed"),)
"""What the first versions did not write: a file without one is a good one."""
SEED = ("counters", "seed")  # may be any whole number
UNDEFINED = ("auc",)
"""Null where all examples are of one class, as other metrics then are: a null is a good one."""


@dataclass
class Saved:
    """A run that was saved before its end, and what loading it brings back."""

    config: RunConfig
    checkpoint: Path
    original: Any


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Callable[[str], Saved]:
    known: dict[str, Saved] = {}

    def make(name: str) -> Saved:
        if name not in known:
            out = tmp_path_factory.mktemp(name) / "run"
            outsize.train(RUNS[name], out, quiet=True)
            checkpoint = list_checkpoints(out / "checkpoint")[0]
            original = loaded(RUNS[name], checkpoint)
            assert original[0]["stopped"] == ""
            known[name] = Saved(RUNS[name], checkpoint, original)
        return known[name]

    return make


def loaded(config: RunConfig, checkpoint: Path) -> Any:
    """Everything that loading a checkpoint brings back."""
    task = TASKS[config.task](config)
    loop = Loop(task, config, build_optimizer(config, task.trained))
    with torch.random.fork_rng():
        logged = loop.load(checkpoint)
        drawn = torch.get_rng_state()
    store = task.embeddings.store
    rows = [] if store is None else [part.tensors for part in store.parts()]
    negatives = getattr(task, "negatives", torch.nn.Module()).state_dict()
    optimizers = [optimizer.state_dict() for optimizer in loop.optimizers]
    return [asdict(loop.state), dict(task.trained.state_dict()), optimizers, drawn, rows,
            dict(negatives), logged]  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(map(same, one, other))
        )
    return type(one) is type(other) and repr(one) == repr(other)


def read(path: Path) -> Any:
    """The JSON of a file, or that in the header of a file of tensors."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.loads(content)
    size = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["cache"])


def write(path: Path, text: str) -> None:
    """Replace the JSON of a file, with a manifest that vouches for it."""
    if path.suffix == ".json":
        content = text.encode()
    else:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header["__metadata__"]["cache"] = text
        head = json.dumps(header).encode()
        content = len(head).to_bytes(8, "little") + head + content[8 + size :]
    path.write_bytes(content)
    if path.name != "manifest.json":
        manifest = json.loads((path.parent / "manifest.json").read_text())
        facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest["files"][path.name] = facts
        (path.parent / "manifest.json").write_text(json.dumps(manifest))


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the members of a tree are."""
    members = node.items() if isinstance(node, dict) else enumerate(node)
    for key, member in members:
        yield (*path, key)
        if isinstance(member, dict | list):
            yield from places(member, (*path, key))


def changes(node: Any) -> list[Any]:
    """What may stand in place of a value, and is of another kind."""
    found: list[Any] = [
        None,
        "text",
        1.5,
        -1,
        True,
        [],
        {},
        [node],
        {"x": node},
        [[]],
        {"__tensor__": "/x"},
    ]
    if isinstance(node, int | float) and not isinstance(node, bool):
        found = [change for change in found if isinstance(change, bool)
                 or not isinstance(change, int | float)]  # fmt: skip
        found += [str(node), 10**400]
        found += [-1, node + 0.5, 10**40] if isinstance(node, int) and node >= 0 else []
    if isinstance(node, str):
        found.remove("text")
    if isinstance(node, bool):
        found.remove(True)
    return [change for change in found if change != node or type(change) is not type(node)]


def mutated(tree: Any, place: tuple[Any, ...], draw: random.Random) -> Any:
    """A copy of a tree in which one value is missing, has another name, or is of another kind."""
    copied = copy.deepcopy(tree)
    parent = copied
    for key in place[:-1]:
        parent = parent[key]
    key = place[-1]
    is_free = place[:-1] in FREE_NAMES or place in LATER_NAMES or isinstance(parent, list)
    kind = draw.choice(["change", "change", "change", "delete", "rename"])
    if kind == "change" or (is_free and isinstance(parent, dict)):
        found = changes(parent[key])
        if place[:-1] in FREE_NAMES and key in UNDEFINED:
            found.remove(None)
        if place == ("loop", "sums") and {} in found:
            found.remove({})  # lacks all names
        if place == SEED:
            found = [other for other in found if type(other) is not int or abs(other) >= 1 << 63]
        parent[key] = draw.choice(found)
    elif kind == "delete" or isinstance(parent, list):
        del parent[key]
    else:
        parent[f"{key}x"] = parent.pop(key)
    return copied


def shapes_of(tree: Any, count: int, seed: str) -> Iterator[tuple[str, str]]:
    """Texts in place of the JSON of a file, each with what was done to it."""
    for text in ("[]", "{}", "null", "3", '"text"', "", "{", '{"a": NaN}'):
        yield text, f"all is {text}"
    yield "[" * 200_000 + "]" * 200_000, "lists without end"
    yield '{"loop":' * 200_000 + "1" + "}" * 200_000, "objects without end"
    draw = random.Random(seed)
    known = list(places(tree))
    for _ in range(count):
        place = draw.choice(known)
        wrong = mutated(tree, place, draw)
        yield json.dumps(wrong), f"at {place}"
    deep = json.dumps(tree)
    for place in draw.sample(known, 3):
        copied = copy.deepcopy(tree)
        parent = copied
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = "DEEP"
        deep = json.dumps(copied).replace('"DEEP"', "[" * 900 + "]" * 900)
        yield deep, f"deep at {place}"


@pytest.mark.parametrize(("run", "name"), CASES)
def test_no_shape_of_json_is_anything_but_refused_in_one_line_or_harmless(
    saved, run, name, tmp_path, unchecked_shapes
):
    """Whatever the JSON holds, loading gives what was saved, or an error that names the folder."""
    found = saved(run)
    num_refused, wrong = 0, []
    count = PER_FILE if name == "state.json" else PER_FILE // 2
    shapes = shapes_of(read(found.checkpoint / name), count, f"{run} {name}")
    for i, (text, what) in enumerate(shapes):
        damaged = tmp_path / str(i) / found.checkpoint.name
        shutil.copytree(found.checkpoint, damaged)
        write(damaged / name, text)
        try:
            if not same(loaded(found.config, damaged), found.original):
                wrong.append(f"{what}: taken")
        except OutsizeError as error:
            num_refused += 1
            if "\n" in str(error) or len(str(error)) > 1000:
                wrong.append(f"{what}: {error}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        shutil.rmtree(damaged)
    assert wrong == []
    assert num_refused > count // 2


CHANGES = {
    "click best": ("click", lambda state: state["loop"].update(best={}), "loop.best is empty"),
    "tables best": ("tables", lambda state: state["loop"].update(best={}), "loop.best is empty"),
    "best loss": (
        "click", lambda state: state["loop"]["best"].update(bayes_loss=None), "loop.best.bayes_loss"
    ),
    "best AUC": (
        "click", lambda state: state["loop"]["test"].update(bayes_auc=None), "loop.test.bayes_auc"
    ),
    "calibration": (
        "click", lambda state: state["loop"]["test"].update(calibration=None), "loop.test.calib"
    ),
    "counts": ("sharded", lambda state: state["loop"].update(row_counts={}), "loop.row_counts"),
    "setting": (
        "sharded", lambda state: state["optimizers"][0]["param_groups"][0].update(dampening=0.5),
        "param_groups.dampening is 0.5 there and 0 here",
    ),
    "decay": (
        "click", lambda state: state["optimizers"][0]["param_groups"][0].update(weight_decay=9.0),
        "param_groups.weight_decay is 9.0 there and ",
    ),
    "row setting": (
        "click", lambda state: state["optimizers"][1]["param_groups"][0].update(eps=1.0),
        "param_groups.eps is 1.0 there and ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "change", "fact"), CHANGES.values(), ids=CHANGES)
def test_a_state_that_no_run_writes_is_refused(saved, run, change, fact, tmp_path):
    found = saved(run)
    damaged = Path(shutil.copytree(found.checkpoint, tmp_path / found.checkpoint.name))
    state = read(damaged / "state.json")
    change(state)
    write(damaged / "state.json", json.dumps(state))
    with pytest.raises(CheckpointError, match=re.escape(fact)):
        loaded(found.config, damaged)


@pytest.mark.parametrize("run", ["click", "sharded"])
@pytest.mark.parametrize("choice", ["foreach", "fused", "capturable"])
def test_the_kernels_of_a_saved_optimizer_are_not_taken_over(saved, run, choice, tmp_path):
    found = saved(run)
    other = Path(shutil.copytree(found.checkpoint, tmp_path / found.checkpoint.name))
    state = read(other / "state.json")
    state["optimizers"][0]["param_groups"][0][choice] = True
    write(other / "state.json", json.dumps(state))
    assert same(loaded(found.config, other), found.original)


def test_undefined_metrics_of_one_class_are_taken(saved, tmp_path):
    found = saved("click")
    other = Path(shutil.copytree(found.checkpoint, tmp_path / found.checkpoint.name))
    state = read(other / "state.json")
    undefined = dict.fromkeys(("auc", "bayes_auc", "normalized_entropy", "calibration"))
    state["loop"]["test"].update(undefined)
    write(other / "state.json", json.dumps(state))
    taken = loaded(found.config, other)
    assert taken[0]["test"] == {**found.original[0]["test"], **undefined}


def test_a_checkpoint_of_an_older_version_is_taken_without_a_record_of_the_log(saved, tmp_path):
    found = saved("click")
    older = tmp_path / found.checkpoint.name
    shutil.copytree(found.checkpoint, older)
    tree = read(older / "state.json")
    del tree["loop"]["sums"], tree["loop"]["row_counts"]
    write(older / "state.json", json.dumps(tree))
    manifest = read(older / "manifest.json")
    del manifest["files"]["log.json"]
    write(older / "manifest.json", json.dumps(manifest))
    (older / "log.json").unlink()
    assert found.original[0]["sums"] == found.original[0]["row_counts"] == {}
    assert same(loaded(found.config, older), [*found.original[:-1], None])


def test_weights_of_another_type_are_refused_and_not_converted(saved, tmp_path):
    found = saved("click")
    other = tmp_path / found.checkpoint.name
    state = load_checkpoint(found.checkpoint)
    state["model"]["top.0.weight"] = state["model"]["top.0.weight"].double()
    rows = {path.name: path for path in found.checkpoint.glob("rows*")}
    rows["log.json"] = found.checkpoint / "log.json"

    def copy_rows(folder: Path) -> dict[str, dict[str, Any]]:
        for path in rows.values():
            shutil.copy(path, folder)
        return {name: read_manifest(found.checkpoint)[name] for name in rows}

    save_checkpoint(tmp_path, int(other.name[5:]), state, write_more=copy_rows)
    with pytest.raises(CheckpointError) as caught:
        loaded(found.config, other)
    assert "model.top.0.weight is float64 of shape" in str(caught.value)
    assert str(other) in str(caught.value)
    assert "--out" in str(caught.value)


@pytest.fixture
def stopped(saved, tmp_path) -> Path:
    """A copy of a run's folder, as it was before its last checkpoint."""
    checkpoint = saved("click").checkpoint
    run = Path(tmp_path / "stopped")
    shutil.copytree(checkpoint.parent.parent, run)
    for later in list_checkpoints(run / "checkpoint")[1:]:
        shutil.rmtree(later)
    return run


def test_a_resumed_run_shows_all_that_was_trained(stopped):
    whole = RunFolder(stopped).metrics()
    (stopped / "metrics.jsonl").write_bytes((stopped / "metrics.jsonl").read_bytes()[:-20])
    outsize.train(RUNS["click"], stopped, resume=True, quiet=True)
    lines = RunFolder(stopped).metrics()
    for line in (*whole, *lines):
        for name in ("examples_per_s", "train_s"):
            line.pop(name, None)
    assert lines == whole


@pytest.mark.parametrize("damage", ["missing", "cut", "a line removed", "folder", "a digit"])
def test_a_run_whose_log_is_damaged_is_not_resumed(stopped, damage):
    log = stopped / "metrics.jsonl"
    content = log.read_bytes()
    log.unlink()
    if damage == "folder":
        log.mkdir()
    elif damage != "missing":
        changed = {"cut": content[:50], "a line removed": content.split(b"\n", 1)[1],
                   "a digit": content.replace(b'"step": 2', b'"step": 3', 1)}  # fmt: skip
        log.write_bytes(changed[damage])
    with pytest.raises(DataError) as caught:
        outsize.train(RUNS["click"], stopped, resume=True, quiet=True)
    assert str(log) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.pop("model"),
        lambda tree: tree.pop("loop"),
        lambda tree: tree.update(loop=[]),
        lambda tree: tree["loop"].update(best=[1]),
        lambda tree: tree["loop"].update(step="4"),
        lambda tree: tree["loop"].update(test={"loss": "low"}),
        lambda tree: tree["model"].update({"top.0.weight": 3}),
        lambda tree: tree["model"].update({"top.0.weight": {"__tensor__": "/model/top.2.weight"}}),
    ],
)
def test_a_state_of_another_shape_is_not_exported(stopped, change, tmp_path):
    (checkpoint,) = list_checkpoints(stopped / "checkpoint")
    tree = read(checkpoint / "state.json")
    change(tree)
    write(checkpoint / "state.json", json.dumps(tree))
    with pytest.raises(CheckpointError) as caught:
        export_run(stopped, tmp_path / "out")
    assert str(checkpoint) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
