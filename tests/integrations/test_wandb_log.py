"""Offline runs of Weights & Biases are read back from their files."""

from __future__ import annotations

import json
import struct

import pytest
from logged_runs import make_config, stopped_and_resumed

from outsize.errors import DataError
from outsize.training.run_folder import RunFolder

pytest.importorskip("wandb", reason="the extra wandb is not installed: pip install '.[wandb]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # its own


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    out = tmp_path_factory.mktemp("logged") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        stopped_and_resumed(make_config("log.wandb=clicks"), out, patch)
    return RunFolder(out)


def records(folder):
    """The records of all offline runs of a folder, oldest first."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in chunks(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def chunks(content):
    """The records of a file in LevelDB's log format, after a header of 7 bytes."""
    place, data = 7, b""
    while place + 7 <= len(content):
        left = 32_768 - place % 32_768  # a block; its last bytes hold no head of a record
        if left < 7:
            place += left
            continue
        size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        data += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield data
            data = b""


def history(folder):
    return [
        {(item.key or "/".join(item.nested_key)): json.loads(item.value_json)
         for item in record.history.item}
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
    ]  # fmt: skip


def test_a_resumed_run_is_one_run_with_each_line_once(resumed):
    runs = [r.run for r in records(resumed.path) if r.WhichOneof("record_type") == "run"]
    assert {run.project for run in runs} == {"clicks"}
    assert len({run.run_id for run in runs}) == 1
    assert len(list(resumed.path.glob("wandb/offline-run-*"))) == 2
    rows = history(resumed.path)
    trained = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    expected = [(x["step"], x["loss"]) for x in resumed.metrics() if x["split"] == "train"]
    assert trained == [(step, pytest.approx(loss)) for step, loss in expected]
    validated = [row["step"] for row in rows if "validation/auc" in row]
    assert validated == [4, 8]


def test_the_configuration_is_kept(resumed):
    runs = [r.run for r in records(resumed.path) if r.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["train"]["batch_size"] == 100


def test_a_damaged_record_is_one_line(tmp_path):
    from outsize.integrations.wandb import WandbLog

    (tmp_path / "wandb-run.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read") as caught:
        WandbLog(tmp_path, "clicks", {})
    assert "\n" not in str(caught.value)
