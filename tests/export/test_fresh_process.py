"""A fresh process that has the exports only scores raw rows as the runs have measured them."""

import json
import shutil

import numpy as np
import processes
import pytest
from raw_logs import KINDS, TEST_ROWS, as_columns, make_config
from test_predict import metrics_of

import outsize
from outsize.export.quantization import Quantization
from outsize.training import export_run
from outsize.training.strict_toml import encode, to_toml

PQ = Quantization("pq", columns=2, codes=8, min_rows=10)
SCORE = """
import json, sys, outsize
rows = json.loads(sys.argv[1])
print(json.dumps({
    folder: outsize.load_exported(folder).predict(rows, logits=True).tolist()
    for folder in sys.argv[2:]
}))
"""


@pytest.fixture(scope="module")
def two_ranks(trained, tmp_path_factory):
    """A run of two ranks over a sharded store with caches; its summary and folder."""
    folder = tmp_path_factory.mktemp("ranks")
    config = make_config(trained.log, *KINDS["cached"], "train.batch_size=32")
    (folder / "run.toml").write_text(to_toml(encode(config)))
    words = ["-m", "outsize", "train", folder / "run.toml", "--out", folder / "run", "--json"]
    code, output, errors = processes.run_ranks(2, *words)
    assert code == 0, errors
    return json.loads(output), folder / "run"


def test_metrics_of_a_fresh_process_without_the_data_are_those_reported(
    trained, two_ranks, tmp_path
):
    reported = {}
    for kind in ("tables", "compressed", "cached"):
        result, _, folder = trained(kind)
        shutil.copytree(folder, tmp_path / kind)
        reported[kind] = result.test
    summary, run = two_ranks
    for name, method in (("ranks", None), ("ranks int8", "int8"), ("ranks pq", PQ)):
        written = export_run(run, tmp_path / name, quantize=method)
        reported[name] = written["metrics"]["test"]
    away = trained.folder.with_name("away")
    trained.folder.rename(away)
    try:
        words = [json.dumps(as_columns(TEST_ROWS)), *(tmp_path / name for name in reported)]
        done = processes.run("-c", SCORE, *words, cwd=tmp_path, timeout=120)
    finally:
        away.rename(trained.folder)
    assert done.returncode == 0, done.stderr
    for folder, logits in json.loads(done.stdout).items():
        found = metrics_of(np.array(logits, np.float32), TEST_ROWS)
        assert found == pytest.approx(reported[folder.rpartition("/")[2]], rel=1e-9), folder
    assert reported["ranks"] == pytest.approx(summary["test"], rel=1e-12)
    assert len({values["loss"] for name, values in reported.items() if "ranks" in name}) == 3
    assert reported["ranks int8"]["auc"] == pytest.approx(reported["ranks"]["auc"], abs=0.01)


def test_rows_of_two_ranks_are_all_in_the_quantized_export(trained, two_ranks, tmp_path):
    _, run = two_ranks
    export_run(run, tmp_path / "plain")
    summary = export_run(run, tmp_path / "int8", quantize="int8")
    plain, small = (outsize.load_exported(tmp_path / name) for name in ("plain", "int8"))
    for table in summary["quantization"]["tables"]:
        exact, rounded = (model.embeddings.tables[table["name"]].materialize().weight
                          for model in (plain, small))  # fmt: skip
        step = exact.abs().amax(dim=1, keepdim=True) / 127
        assert bool(((exact - rounded).abs() <= step * 0.501).all())
