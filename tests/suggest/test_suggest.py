import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outsize.cli import main
from outsize.errors import ConfigError, DataError
from outsize.suggest import Wishes, suggest_run, write_run_file
from outsize.suggest.profile import estimate_distinct
from outsize.suggest.settings import embedding_settings, training_settings
from outsize.training import load_config

NUM_ROWS = 1200
_DRAWS = np.random.default_rng(3)
LABELS = (_DRAWS.random(NUM_ROWS) < 0.3).astype(int)
CITIES = _DRAWS.choice(["Rome", "Oslo", "Bern"], NUM_ROWS)
PRICES = np.round(_DRAWS.lognormal(3, 1, NUM_ROWS), 2)
BASE = {"label": LABELS, "city": CITIES, "price": PRICES}


def csv_of(columns, delimiter=",", header=True):
    lines = [delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    return "\n".join([delimiter.join(columns)] * header + lines) + "\n"


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def uses(suggestion):
    return {decision.column: decision.use for decision in suggestion.decisions}


def test_columns_of_every_kind_are_told_apart(write):
    rows = np.arange(NUM_ROWS)
    start = np.datetime64("2024-01-01T00:00:00")
    tags = ["|".join(_DRAWS.choice(list("abcdefgh"), 1 + i % 3, replace=False)) for i in rows]
    columns = {
        "row_id": [10_000_169_349_117_863_715 + 97 * int(i) for i in rows],
        "clicked": LABELS,
        "city": CITIES,
        "price": PRICES,
        "spent": np.round(_DRAWS.lognormal(3, 3, NUM_ROWS), 2),
        "user_id": _DRAWS.integers(10_000, 10_400, NUM_ROWS),
        "zip": [f"{n:05d}" for n in _DRAWS.integers(0, 300, NUM_ROWS)],
        "num_visits": _DRAWS.integers(0, 200, NUM_ROWS),
        "weekday": rows % 7,
        "tags": tags,
        "review": [f"review {i} of a thing that is very good indeed, says {i}" for i in rows],
        "country": ["IT"] * NUM_ROWS,
        "nothing": [""] * NUM_ROWS,
        "created_at": [str(start + np.timedelta64(int(i), "h")) for i in rows],
    }
    columns["review"] = [text.replace(",", "") for text in columns["review"]]
    suggestion = suggest_run(write(csv_of(columns)))
    assert uses(suggestion) == {
        "row_id": "left out", "clicked": "label", "city": "categorical", "price": "standardize",
        "spent": "log1p", "user_id": "categorical", "zip": "categorical",
        "num_visits": "standardize", "weekday": "categorical", "tags": "multi_valued",
        "review": "left out", "country": "left out", "nothing": "left out", "created_at": "split",
    }  # fmt: skip
    kinds = {decision.column: decision.kind for decision in suggestion.decisions}
    assert [kinds[n] for n in ("row_id", "review", "country", "nothing")] == [
        "unique id", "free text", "constant", "empty",
    ]  # fmt: skip
    assert suggestion.sections["data.split"]["kind"] == "time"


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        (["0", "1"], {}),
        (["-1", "1"], {"positive_from": 1.0}),
        (["False", "True"], {"positive_values": ["True"]}),
        (["no", "yes"], {"positive_values": ["yes"]}),
        (["kept", "returned"], {"positive_values": ["returned"]}),  # the rarer one
    ],
)
def test_labels_may_be_written_in_many_ways(write, values, rule):
    columns = {**BASE, "label": np.array(values)[LABELS]}
    data = suggest_run(write(csv_of(columns))).sections["data"]
    assert {key: data[key] for key in ("positive_from", "positive_values") if key in data} == rule


@pytest.mark.parametrize(
    ("columns", "wishes", "message"),
    [
        ({"label": LABELS, "click": LABELS}, {}, "several columns may be the label, label, click"),
        ({"a": LABELS, "b": 1 - LABELS}, {}, "2 have two values, a, b: say which is the label"),
        ({"a": PRICES, "city": CITIES}, {}, "none has two values: say which is the label"),
        ({"label": LABELS * 0, "city": CITIES}, {}, "has only '0'"),
        ({"label": LABELS}, {}, "no column besides the label"),
        ({"stars": np.arange(NUM_ROWS) % 5, "city": CITIES}, {"label": "stars"}, "--positive 4"),
        (BASE, {"label": "labl"}, "Did you mean 'label'"),
        (BASE, {"drop": ("cty",)}, "--drop cty: there is no such column"),
        (BASE, {"time": "city"}, "--time city: its values are neither numbers nor dates"),
    ],
)
def test_what_cannot_be_told_is_asked_for_in_one_line(write, columns, wishes, message):
    with pytest.raises(DataError, match=message):
        suggest_run(write(csv_of(columns)), Wishes(**wishes))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,label\n", "there is no row of data"),
        ("", "is empty"),
        (bytes(range(256)) * 9, "NUL bytes"),
    ],
)
def test_files_without_rows_are_refused(write, text, message):
    with pytest.raises(DataError, match=message):
        suggest_run(write(text))


def test_a_threshold_makes_a_label_of_ratings(write):
    path = write(csv_of({"stars": np.arange(NUM_ROWS) % 5, "city": CITIES}))
    data = suggest_run(path, Wishes(label="stars", positive="4")).sections["data"]
    assert data["positive_from"] == 4


def test_columns_that_know_the_label_are_left_out_unless_they_are_kept(write):
    leaks = {
        "repaid": np.where(LABELS == 1, 5.0, 9.0) + _DRAWS.normal(size=NUM_ROWS) * 0.1,
        "charged_off": np.where(LABELS == 1, "Rome", ""),
        "hint": LABELS + _DRAWS.normal(size=NUM_ROWS),  # AUC 0.76, as good columns have it
    }
    path = write(csv_of({**BASE, **leaks}))
    found = {d.column: d for d in suggest_run(path).decisions}
    assert found["repaid"].use == found["charged_off"].use == "left out"
    assert "alone it predicts the label with an AUC of 1.000" in found["repaid"].reason
    assert "whether it is missing" in found["charged_off"].reason
    assert found["hint"].use == "standardize"
    assert uses(suggest_run(path, Wishes(keep=("repaid",))))["repaid"] != "left out"
    assert uses(suggest_run(path, Wishes(drop=("hint",))))["hint"] == "left out"


def test_a_column_that_follows_the_time_of_the_split_is_left_out(write):
    times = 1_600_000_000 + 3600 * np.arange(NUM_ROWS)
    path = write(csv_of({**BASE, "timestamp": times, "season": np.arange(NUM_ROWS) // 100}))
    assert uses(suggest_run(path))["season"] == "left out"
    assert uses(suggest_run(path, Wishes(keep=("season",))))["season"] == "categorical"


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        (csv_of(BASE, ";"), {"delimiter": ";"}),
        ("\ufeff" + csv_of(BASE), {}),
        (csv_of(BASE, header=False), {"columns": ["c1", "c2", "c3"]}),
        (csv_of({**BASE, "city": [f'"{city}, x"' for city in CITIES]}), {}),
    ],
    ids=["semicolons", "byte order mark", "no header", "quotes"],
)
def test_unusual_text_files_are_read_as_training_reads_them(write, text, reading, tmp_path):
    suggestion = suggest_run(write(text))
    data = suggestion.sections["data"]
    assert {key: data[key] for key in ("delimiter", "columns") if key in data} == reading
    assert suggestion.total_rows == NUM_ROWS
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    built = load_config(tmp_path / "run.toml").data.build()
    assert sum(built.num_examples(part) for part in ("train", "validation", "test")) == NUM_ROWS


def test_words_for_missing_values_and_numbers_with_commas(write):
    prices = [["NA", "?", str(price)][min(i % 9, 2)] for i, price in enumerate(PRICES)]
    columns = {**BASE, "price": prices, "cost": [str(p).replace(".", ",") for p in PRICES]}
    suggestion = suggest_run(write(csv_of(columns, ";")))
    assert suggestion.sections["data"]["missing"] == ["?", "NA"]
    assert uses(suggestion)["price"] == "standardize"
    found = {decision.column: decision for decision in suggestion.decisions}
    assert (found["cost"].use, found["cost"].kind) == ("left out", "numbers with commas")


def test_repeated_names_and_unreadable_bytes_are_left_out_with_a_reason(write):
    text = csv_of({**BASE, "name": CITIES, "more": CITIES}).encode()
    text = text.replace(b"price,name,more", b"name,name,more").replace(b"Rome", b"R\xf6m")
    with pytest.raises(DataError, match=r"city \(not UTF-8\), more \(not UTF-8\)"):
        suggest_run(write(text))
    repeated = suggest_run(write(text.replace(b"R\xf6m", b"Rome")))
    assert uses(repeated) == {
        "label": "label", "city": "categorical", "name": "left out", "more": "categorical",
    }  # fmt: skip


def test_what_a_column_cannot_be_read_for_and_a_rare_label_are_told_before_training(write):
    columns = {**BASE, "label": [1, *[0] * (NUM_ROWS - 1)], "name": CITIES}
    text = csv_of(columns).encode().replace(b"Rome", b"R\xf6m", 1)
    notes = " ".join(suggest_run(write(text)).notes)
    assert "iconv -f latin1 -t utf-8" in notes
    assert f"only 1 row has label 1, of {NUM_ROWS:,} looked at" in notes


def test_columns_that_all_have_one_name_are_named(write):
    text = csv_of({"label": LABELS, "a": CITIES, "b": CITIES}).replace("label,a,b", "label,a,a")
    with pytest.raises(DataError, match="several columns have the name a; give each a name"):
        suggest_run(write(text))


def test_rows_without_a_label_are_skipped_in_training(write):
    suggestion = suggest_run(write(csv_of({**BASE, "label": ["", *LABELS[1:]]})))
    assert suggestion.sections["data"]["max_bad_rows"] >= 1 / NUM_ROWS
    assert "no label" in suggestion.notes[0]


def test_parquet_gzip_and_folders_give_the_same_run(write, tmp_path):
    plain = suggest_run(write(csv_of(BASE)))
    write(gzip.compress(csv_of(BASE).encode()), "data.csv.gz")
    pq.write_table(pa.table({k: list(v) for k, v in BASE.items()}), tmp_path / "data.parquet")
    (tmp_path / "folder").mkdir()
    for part in (1, 2):
        (tmp_path / "folder" / f"{part}.csv").write_text(csv_of(BASE))
    for name in ("data.csv.gz", "data.parquet"):
        assert uses(suggest_run(tmp_path / name)) == uses(plain)
    both = suggest_run(tmp_path / "folder")
    assert both.total_rows == 2 * NUM_ROWS
    assert both.sections["data"]["path"] == [str(tmp_path / "folder" / "*.csv")]


def test_a_large_text_file_is_sampled_and_its_rows_estimated(write, monkeypatch):
    for name, size in (("_HEAD_BYTES", 2000), ("_BLOCK_BYTES", 1000), ("_MAX_BYTES", 8000)):
        monkeypatch.setattr(f"outsize.suggest.text_sample.{name}", size)
    suggestion = suggest_run(write(csv_of(BASE)))
    assert suggestion.is_estimate
    assert suggestion.total_rows == pytest.approx(NUM_ROWS, rel=0.1)


def test_pairs_without_a_label_make_a_two_tower_run(write, tmp_path):
    rows = np.arange(NUM_ROWS)
    columns = {"userId": rows % 90, "movieId": rows * 7 % 50, "rating": rows % 5 + 1,
               "timestamp": [str(np.datetime64("2024-01-01") + int(i)) for i in rows]}  # fmt: skip
    suggestion = suggest_run(write(csv_of(columns)))
    assert uses(suggestion) == {
        "userId": "query", "movieId": "item", "rating": "positive", "timestamp": "split",
    }  # fmt: skip
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    config = load_config(tmp_path / "run.toml")
    assert (config.task, config.data.at_least) == ("retrieval", 4.0)
    assert config.data.build().num_pairs("test") > 0
    with pytest.raises(DataError, match="--query COLUMN"):
        suggest_run(write(csv_of(BASE)), task="retrieval")


def test_rows_that_do_not_fit_in_memory_are_compressed():
    sections, why = embedding_settings({"user": 50_000_000}, memory=4 << 30)
    assert sections["embeddings"]["method"] == "cce"
    assert "more than half of the 4.3 GB" in why
    assert sections["embeddings"]["max_params"] * 4 * 3 <= 2 << 30
    assert embedding_settings({"user": 1000}, memory=4 << 30)[0]["embeddings"]["kind"] == "store"


def test_small_data_has_small_batches():
    assert training_settings(3_000)["batch_size"] == 32
    assert training_settings(1_000_000)["batch_size"] == 2048
    assert training_settings(100_000_000)["epochs"] == 1


def test_distinct_values_are_estimated_from_those_that_occur_once():
    codes = np.random.default_rng(0).integers(0, 5_000, 10_000)
    _, codes = np.unique(codes, return_inverse=True)
    assert estimate_distinct(codes, 1_000_000) == pytest.approx(5_000, rel=0.1)
    assert estimate_distinct(np.arange(1_000), 1_000_000) == 1_000_000


def test_a_file_that_is_there_is_replaced_only_with_force(write, tmp_path):
    suggestion, run = suggest_run(write(csv_of(BASE))), tmp_path / "run.toml"
    run.write_text("mine")
    with pytest.raises(ConfigError, match="exists: replace it with --force"):
        write_run_file(suggestion, run, "outsize init data.csv")
    assert run.read_text() == "mine"
    write_run_file(suggestion, run, "outsize init data.csv", force=True)
    assert load_config(run).model
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv", "run.toml"]


def test_from_a_file_to_a_report_without_editing(write, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write(csv_of(BASE), "clicks.csv")
    for words in (
        ["init", "clicks.csv", "--json"],
        ["train", "run.toml", "--set", "train.epochs=1"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(words)
        assert caught.value.code == 0
    out, err = capfd.readouterr()
    assert {c["column"]: c["use"] for c in json.loads(out)["columns"]}["city"] == "categorical"
    assert "train       loss" in err  # a line of the training loss, without a terminal
    assert (tmp_path / "runs" / "run" / "report.html").exists()
    with pytest.raises(SystemExit) as caught:
        main(["compare", "runs/run", "runs/run"])
    assert caught.value.code == 0
    assert "dcnv2" in capfd.readouterr().err
