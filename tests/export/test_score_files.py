"""Files of raw rows are scored in a stream, and measured where they have labels."""

import csv
import gzip
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from raw_logs import INPUTS, ROWS, TEST_ROWS, as_columns, make_config, write_rows

import outsize
from outsize.cli import main
from outsize.data.encoding import sources
from outsize.errors import ConfigError, DataError, WriteError
from outsize.export.score_files import evaluate_file, score_file
from outsize.export.score_output import ScoreOutput
from outsize.training.evaluate import evaluate


@pytest.fixture
def model(trained):
    return outsize.load_exported(trained("store")[2])


@pytest.fixture
def raw_file(tmp_path):
    return write_rows(tmp_path / "test.csv", TEST_ROWS, INPUTS)


def read(path):
    table = pq.read_table(path) if path.suffix == ".parquet" else pc.read_csv(path)
    return table.to_pydict()


@pytest.mark.parametrize("out", ["scores.parquet", "scores.csv"])
@pytest.mark.parametrize("block_bytes", [1 << 22, 600])
def test_a_file_has_the_scores_of_its_rows(
    model, raw_file, tmp_path, out, block_bytes, monkeypatch
):
    monkeypatch.setattr(sources, "BLOCK_BYTES", block_bytes)  # many chunks, one result
    found = score_file(model, raw_file, tmp_path / out, keep=["city"], quiet=True)
    scores = read(tmp_path / out)
    expected = model.predict(as_columns(TEST_ROWS))
    assert scores["row"] == list(range(len(TEST_ROWS)))
    assert scores["city"] == [row["city"] for row in TEST_ROWS]
    assert np.array_equal(scores["probability"], expected)
    assert scores["logit"] == pytest.approx(model.predict(as_columns(TEST_ROWS), logits=True))
    assert found.num_rows == len(TEST_ROWS)
    assert found.mean == pytest.approx(expected.mean())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out, "test.csv"])


@pytest.mark.parametrize("form", ["csv.gz", "tsv", "parquet", "csv"])
def test_every_form_of_file_is_read(model, tmp_path, form, monkeypatch):
    path = tmp_path / f"rows.{form}"
    plain = write_rows(tmp_path / "plain.csv", TEST_ROWS, INPUTS)
    if form == "csv.gz":
        path.write_bytes(gzip.compress(plain.read_bytes()))
    elif form == "tsv":
        path.write_text(plain.read_text().replace(",", "\t"))
    elif form == "parquet":
        pq.write_table(pc.read_csv(plain), path, row_group_size=40)  # with types of their own
    else:
        path.write_bytes(plain.read_bytes())
    score_file(model, path, tmp_path / "scores.parquet", quiet=True)
    assert np.array_equal(
        read(tmp_path / "scores.parquet")["probability"], model.predict(as_columns(TEST_ROWS))
    )


def test_bad_rows_are_refused_with_their_line_and_nothing_is_left(model, raw_file, tmp_path):
    lines = raw_file.read_text().splitlines()
    lines[5] = "old" + lines[5][lines[5].index(",") :]
    raw_file.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"in 'age' that is not a number \(first: .* line 6: 'old'"):
        score_file(model, raw_file, tmp_path / "scores.csv", quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["test.csv"]


def test_a_share_of_bad_rows_may_be_skipped(model, raw_file, tmp_path):
    lines = raw_file.read_text().splitlines()
    lines[5] = "old" + lines[5][lines[5].index(",") :]
    lines[9] = "too,few"
    raw_file.write_text("\n".join(lines))
    out = tmp_path / "scores.csv"
    found = score_file(model, raw_file, out, max_bad_rows=0.1, quiet=True)
    assert found.num_bad == 2
    assert "wrong number of columns" in found.bad_rows
    assert read(out)["row"] == [row for row in range(len(TEST_ROWS)) if row not in (4, 8)]
    with pytest.raises(DataError, match="2 of 150 rows are malformed"):
        score_file(model, raw_file, out, max_bad_rows=0.01, quiet=True)
    assert len(read(out)["row"]) == 148  # the earlier scores are untouched


@pytest.mark.parametrize(
    ("file", "settings", "error", "message"),
    [
        ("absent.csv", {}, DataError, "no such file"),
        (".", {}, DataError, "is a folder"),
        ("empty.csv", {}, DataError, "is empty"),
        ("header.csv", {}, DataError, "no row of data"),
        ("narrow.csv", {}, DataError, "has no column 'city'"),
        ("binary.parquet", {}, DataError, "not a readable Parquet file"),
        ("test.csv", {"keep": ["town"]}, DataError, "has no column 'town'"),
        ("test.csv", {"out": "scores.xlsx"}, ConfigError, r"a \.parquet or a \.csv file"),
        ("test.csv", {"out": "test.csv/scores.csv"}, WriteError, "could not write"),
    ],
)
def test_what_cannot_be_scored_is_refused(model, raw_file, file, settings, error, message):
    folder = raw_file.parent
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text(",".join(INPUTS) + "\n")
    (folder / "narrow.csv").write_text("age,price\n1,2\n")
    (folder / "binary.parquet").write_bytes(b"PAR1 and nothing else")
    out = folder / settings.pop("out", "scores.csv")
    with pytest.raises(error, match=message) as caught:
        score_file(model, folder / file, out, quiet=True, **settings)
    assert "\n" not in str(caught.value)
    assert not (folder / "scores.csv").exists()


@pytest.mark.parametrize("kind", ["store", "compressed"])
def test_a_labelled_file_has_the_metrics_of_the_report(trained, kind, tmp_path):
    result, _, folder = trained(kind)
    path = write_rows(tmp_path / "test.csv", TEST_ROWS)
    found = evaluate(folder, path, quiet=True)
    assert found["metrics"] == result.test
    assert found["step"] == result.best["step"]
    assert found["num_rows"] == len(TEST_ROWS)
    assert evaluate(result.out, path, quiet=True)["metrics"] == result.test
    other = evaluate_file(outsize.load_exported(folder), write_rows(path, ROWS[:300]), quiet=True)
    assert other["loss"] != result.test["loss"]


def test_labels_are_judged_as_in_training(trained, model, tmp_path):
    path = write_rows(tmp_path / "test.csv", [{**row, "label": "2"} for row in TEST_ROWS[:3]])
    with pytest.raises(DataError, match="a label other than 0 and 1"):
        evaluate_file(model, path, quiet=True)
    without = write_rows(tmp_path / "without.csv", TEST_ROWS, INPUTS)
    with pytest.raises(DataError, match="has no column 'label'"):
        evaluate_file(model, without, quiet=True)


def test_another_step_of_a_run_is_evaluated_on_demand(trained, tmp_path):
    result, _, folder = trained("store")
    path = write_rows(tmp_path / "test.csv", TEST_ROWS)
    assert evaluate(result.out, path, result.steps, quiet=True)["step"] == result.steps
    with pytest.raises(ConfigError, match="no checkpoint of step 1"):
        evaluate(result.out, path, 1, quiet=True)
    with pytest.raises(ConfigError, match="an export has one set of weights"):
        evaluate(folder, path, 3, quiet=True)
    with pytest.raises(ConfigError, match="neither a run nor an export"):
        evaluate(tmp_path, path, quiet=True)


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


def test_the_commands_print_scores_or_one_object(trained, raw_file, tmp_path, capfd):
    folder, out = trained("store")[2], tmp_path / "scores.parquet"
    assert run("predict", folder, raw_file, "--keep", "city") == 0
    lines = list(csv.DictReader(capfd.readouterr().out.splitlines()))
    assert lines[7]["city"] == TEST_ROWS[7]["city"]
    assert len(lines) == len(TEST_ROWS)
    assert run("predict", folder, raw_file, "--out", out, "--json") == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["num_rows"] == len(TEST_ROWS)
    assert run("predict", folder, raw_file, "--out", raw_file) == 2
    assert "is the file that is scored" in capfd.readouterr().err
    assert run("predict", folder, tmp_path / "nowhere.csv", "--out", raw_file) == 2
    assert "nowhere.csv: no such file" in capfd.readouterr().err
    assert run("predict", folder, raw_file, "--json") == 2
    assert "name it with --out" in capfd.readouterr().err
    labelled = write_rows(tmp_path / "labelled.csv", TEST_ROWS)
    assert run("evaluate", folder, labelled, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["metrics"] == trained("store")[0].test
    assert run("evaluate", folder, labelled) == 0
    assert f"of step {found['step']} on 150 rows  loss" in capfd.readouterr().err


def test_text_without_a_header_may_lack_its_label(tmp_path):
    rows = [[row["label"], row["city"], row["zip"]] for row in ROWS]
    path = tmp_path / "log.txt"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    data = {
        "path": [str(path)],
        "columns": ["label", "city", "zip"],
        "categorical": ["city", "zip"],
    }
    settings = [f"data.{name}={json.dumps(value)}" for name, value in data.items()]
    settings += ["data.standardize=[]", "data.log1p=[]", "data.multi_valued=[]",
                 "data.vocabulary.hashed=[]", "data.split={kind='hash'}"]  # fmt: skip
    result = outsize.train(make_config(path, *settings), tmp_path / "run", quiet=True)
    outsize.export_run(result.out, tmp_path / "exported")
    model = outsize.load_exported(tmp_path / "exported")
    expected = model.predict({"city": [r[1] for r in rows[:20]], "zip": [r[2] for r in rows[:20]]})
    for cut in (0, 1):
        new = tmp_path / "new.txt"
        new.write_text("".join("\t".join(row[cut:]) + "\n" for row in rows[:20]))
        score_file(model, new, tmp_path / "scores.csv", quiet=True)
        scores = read(tmp_path / "scores.csv")
        assert scores["row"] == list(range(20))
        assert scores["probability"] == pytest.approx(expected, abs=1e-12)


def test_scores_that_nobody_reads_end_in_a_broken_pipe(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as closed:
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=closed))
        with pytest.raises(BrokenPipeError), ScoreOutput(None) as output:
            output.write(pa.table({"row": np.arange(5000)}), {"probability": np.zeros(5000)})
