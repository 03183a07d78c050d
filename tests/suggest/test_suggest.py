import gzip
import json
import zipfile
from dataclasses import replace
from datetime import datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from outsize.cli import main
from outsize.data.click_data import SPLITS
from outsize.data.encoding.splits import HashSplit
from outsize.errors import ConfigError, DataError
from outsize.suggest import Wishes, suggest_run, write_run_file
from outsize.suggest.profile import estimate_distinct, profile_of
from outsize.suggest.roles import decide
from outsize.suggest.settings import embedding_settings, model_settings, training_settings
from outsize.suggest.strength import Strength
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
        "row_id": "left out", "clicked": "label", "city": "categorical", "price": "log1p",
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
        (
            {"bought": LABELS, "click": LABELS},
            {},
            "several columns may be the label, bought, click",
        ),
        (
            {"label": np.arange(NUM_ROWS) % 3, "y": np.arange(NUM_ROWS) % 5},
            {},
            "several columns may be the label, label, y, and none of them has two values",
        ),
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
        (csv_of(BASE).encode("utf-16"), "is UTF-16: convert it, such as with iconv"),
        ("label,a\n1,x\n0,y\n", "has 2 rows: name data of at least 30"),
        ('label,"a\nb"\n' + "1,x\n0,y\n" * 40, "a name in its header has a line break"),
        ("# exported today\n" + csv_of(BASE), "deleting lines before the names of the columns"),
    ],
)
def test_files_that_no_run_can_be_made_of_are_refused(write, text, message):
    with pytest.raises(DataError, match=message):
        suggest_run(write(text))


def test_text_that_is_not_utf8_is_refused_where_its_names_or_labels_are_not(write):
    text = csv_of({**BASE, "label": np.array(["ja", "mögen"])[LABELS]}).encode("latin-1")
    with pytest.raises(DataError, match=r"cannot be the label: \d+ of its values are not UTF-8"):
        suggest_run(write(text))
    assert suggest_run(write(text), Wishes(positive="ja")).sections["data"]["label"] == "label"
    with pytest.raises(DataError, match="names in its header are not UTF-8: convert"):
        suggest_run(write(csv_of({**BASE, "größe": PRICES}).encode("latin-1")))


def test_a_workbook_and_the_edges_of_a_graph_are_refused_with_a_way_out(write, tmp_path):
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as book:
        book.writestr("sheet.xml", "<a/>")
    with pytest.raises(DataError, match="Excel workbook: unpack it, or save its sheet as CSV"):
        suggest_run(tmp_path / "book.xlsx")
    ends = _DRAWS.integers(0, 90, (2, NUM_ROWS))
    edges = write(csv_of({"source": ends[0], "target": ends[1]}))
    with pytest.raises(DataError, match="look like the ends of edges"):
        suggest_run(edges)
    clicks = write(csv_of({"source": ends[0], "target": LABELS}))
    assert suggest_run(clicks).sections["data"]["label"] == "target"


def test_json_is_refused_by_its_name(write):
    with pytest.raises(DataError, match="is JSON: write its rows as CSV or Parquet"):
        suggest_run(write('[{"label": 1}]', "rows.json"))


def test_of_several_columns_of_two_values_the_one_named_after_an_outcome_is_the_label(write):
    columns = {"sex": LABELS[::-1], "default next month": LABELS, "city": CITIES}
    suggestion = suggest_run(write(csv_of(columns)))
    assert suggestion.sections["data"]["label"] == "default next month"
    decided = {decision.column: decision.reason for decision in suggestion.decisions}
    assert decided["default next month"] == "by a word of its name, two values"
    two = {**columns, "churned twice": 1 - LABELS}
    with pytest.raises(DataError, match="3 have two values"):
        suggest_run(write(csv_of(two)))


@pytest.mark.parametrize("clock", ["%I:%M %p", "%I:%M:%S %p", "%H:%M", "%H:%M:%S", ""])
@pytest.mark.parametrize("date", ["%m/%d/%Y", "%d.%m.%Y", "%d-%b-%Y"])
def test_times_are_recognized_and_train_as_they_are_read(write, tmp_path, date, clock):
    start = datetime(2024, 1, 1)
    form = f"{date} {clock}".strip()
    times = [(start + timedelta(hours=7 * i)).strftime(form) for i in range(NUM_ROWS)]
    suggestion = suggest_run(write(csv_of({**BASE, "seen": times})))
    assert suggestion.sections["data.split"]["format"] == form
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    data = load_config(tmp_path / "run.toml").data.build()
    assert data.num_examples("test") == pytest.approx(0.1 * NUM_ROWS, abs=5)


def test_parquet_columns_of_all_types_are_used_or_left_out_with_a_reason(tmp_path):
    lists = [[int(k) for k in range(i % 4)] for i in range(NUM_ROWS)]
    fractions = _DRAWS.normal(size=(NUM_ROWS, 3))
    columns = {
        "label": pa.array(LABELS.astype(bool)),
        "price": pa.array([Decimal(f"{price:.2f}") for price in PRICES]),
        "city": pa.array(CITIES).dictionary_encode(),
        "wait": pa.array([timedelta(seconds=int(s)) for s in _DRAWS.integers(0, 999, NUM_ROWS)]),
        "clock": pa.array([time(int(h), int(h) % 60) for h in _DRAWS.integers(0, 24, NUM_ROWS)]),
        "tags": pa.array(lists),
        "vector": pa.array([list(row) for row in fractions]),
        "nested": pa.array([{"a": 1}] * NUM_ROWS),
        "bytes": pa.array([b"\xff"] * NUM_ROWS),
        "infinite": pa.array(np.where(np.arange(NUM_ROWS) % 9 == 0, np.inf, PRICES)),
        "nan": pa.array(np.where(np.arange(NUM_ROWS) % 9 == 0, np.nan, PRICES)),
        "seen": pa.array([datetime(2024, 1, 1) + timedelta(hours=i) for i in range(NUM_ROWS)]),
        "nothing": pa.nulls(NUM_ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    suggestion = suggest_run(tmp_path / "data.parquet")
    assert uses(suggestion) == {
        "label": "label", "price": "log1p", "city": "categorical", "wait": "standardize",
        "clock": "categorical", "tags": "multi_valued", "vector": "left out",
        "nested": "left out", "bytes": "left out", "infinite": "left out", "nan": "log1p",
        "seen": "split", "nothing": "left out",
    }  # fmt: skip
    decided = {decision.column: decision for decision in suggestion.decisions}
    assert decided["infinite"].reason == "11.2% of its numbers are infinite or too large"
    assert decided["tags"].num_ids == 3
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.parquet")
    assert load_config(tmp_path / "run.toml").data.build().num_examples("train") > 900


def test_values_with_line_breaks_are_read_from_the_beginning(write, tmp_path, monkeypatch):
    monkeypatch.setattr("outsize.suggest.text_sample._MAX_BYTES", 20_000)
    texts = [f'"{city} says\n""{i % 7}"",\nand more"' for i, city in enumerate(CITIES)]
    suggestion = suggest_run(write(csv_of({**BASE, "note": texts})))
    assert uses(suggestion)["note"] == "categorical"
    assert "only the beginning of text with line breaks in values" in suggestion.notes[0]
    assert suggestion.total_rows == pytest.approx(NUM_ROWS, rel=0.05)
    assert "max_bad_rows" not in suggestion.sections["data"]


def test_compressed_files_that_were_read_whole_are_counted_and_need_no_note(tmp_path):
    for part in range(6):  # six sixths add up to less than 1
        rows = {name: values[part * 200 : part * 200 + 200] for name, values in BASE.items()}
        (tmp_path / f"{part}.csv.gz").write_bytes(gzip.compress(csv_of(rows).encode()))
    suggestion = suggest_run(tmp_path)
    assert suggestion.notes == []
    assert (suggestion.total_rows, suggestion.is_estimate) == (NUM_ROWS, False)


def test_numbers_of_a_small_file_are_categories_only_where_they_recur(write):
    rows = np.arange(40)
    columns = {"label": rows % 2, "city": rows % 3, "kind": rows % 7, "size": rows * 13 % 29 / 8}
    found = uses(suggest_run(write(csv_of(columns))))
    assert (found["kind"], found["size"]) == ("categorical", "standardize")


def test_numbers_that_say_nothing_are_not_codes():
    numbers = np.random.default_rng(8).integers(0, 500, NUM_ROWS)
    profile = profile_of("noise", pa.array([str(n) for n in numbers]), NUM_ROWS, True)
    uses = {
        by_value: decide(profile, Strength(by_value, 0.47, 0.5, 0.002), NUM_ROWS).use
        for by_value in (0.505, 0.515)
    }
    assert uses == {0.505: "standardize", 0.515: "categorical"}


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
    assert uses(suggestion)["price"] == "log1p"
    found = {decision.column: decision for decision in suggestion.decisions}
    assert (found["cost"].use, found["cost"].kind) == ("left out", "numbers with commas")


def test_numbers_with_units_are_left_out_unless_they_are_few(write):
    columns = {
        **BASE,
        "paid": [f"${price:.2f}" for price in PRICES],
        "share": [f"{price / 7:.1f}%" for price in PRICES],
        "net": [f"(€{price})" if i % 2 else f"{price} €" for i, price in enumerate(PRICES)],
        "discount": [f"{5 * (i % 5)}%" for i in range(NUM_ROWS)],
        "size": ["9", '"1,200"', '"15,000"', "30"] * (NUM_ROWS // 4),
        "total": [f'"{price * 999:,.0f}"' for price in PRICES],
    }
    found = {d.column: d for d in suggest_run(write(csv_of(columns))).decisions}
    assert {found[name].kind for name in ("paid", "share", "net")} == {"numbers with units"}
    assert found["paid"].reason.startswith("such as '$")
    assert "," in found["total"].reason.partition(":")[0]
    assert found["discount"].use == found["size"].use == "categorical"


def test_infinities_and_errors_of_spreadsheets_among_numbers_are_missing(write, tmp_path):
    wrong = ["inf", "-inf", "#DIV/0!", "#VALUE!", "#N/A"]
    ratios = [wrong[i // 20 % 5] if i % 20 == 0 else price for i, price in enumerate(PRICES)]
    suggestion = suggest_run(write(csv_of({**BASE, "ratio": ratios})))
    assert uses(suggestion)["ratio"] == "log1p"
    assert suggestion.sections["data"]["missing"] == sorted(wrong)
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    data = load_config(tmp_path / "run.toml").data.build()
    assert sum(data.num_examples(part) for part in SPLITS) == NUM_ROWS


def test_decimal_commas_of_a_whole_file_are_read_as_training_reads_them(write, tmp_path):
    amounts = _DRAWS.lognormal(8, 1, NUM_ROWS)
    columns = {
        "label": LABELS, "city": CITIES,
        "price": [f"{price:.2f}".replace(".", ",") for price in PRICES],
        "amount": [f"{n:,.1f}".translate(str.maketrans(",.", ".,")) for n in amounts],
        "day": [f"{1 + i % 28:02d}.{1 + i // 28 % 12:02d}.2024" for i in range(NUM_ROWS)],
    }  # fmt: skip
    suggestion = suggest_run(write(csv_of(columns, ";")))
    assert suggestion.sections["data"]["decimal"] == ","
    assert {uses(suggestion)[name] for name in ("price", "amount")} <= {"standardize", "log1p"}
    assert uses(suggestion)["day"] == "split"
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    data = load_config(tmp_path / "run.toml").data
    changed = replace(data, dense=("amount",), standardize=(), log1p=(), split=HashSplit())
    read = [changed.build().batches(part, NUM_ROWS) for part in SPLITS]
    found = torch.cat([next(batches).dense[:, 0] for batches in read])
    assert np.sort(found.numpy()) == pytest.approx(np.sort(np.round(amounts, 1)), rel=1e-6)


@pytest.mark.parametrize("value", ["3.5", "1,234.5", "0.125"])
def test_one_decimal_point_for_sure_keeps_commas_from_being_decimal(write, value):
    columns = {**BASE, "price": [f"{price:.2f}".replace(".", ",") for price in PRICES]}
    columns["other"] = [value] * 600 + ["7"] * (NUM_ROWS - 600)
    assert "decimal" not in suggest_run(write(csv_of(columns, ";"))).sections["data"]


def test_codes_by_the_name_of_what_they_number_and_numbers_of_rows(write):
    draws = np.random.default_rng(5)
    columns = {
        **BASE,
        "user": draws.integers(1, 300, NUM_ROWS), "user_age": draws.integers(18, 80, NUM_ROWS),
        "Unnamed: 0": draws.permutation(10 * NUM_ROWS)[:NUM_ROWS],
        "__index_level_0__": draws.permutation(10 * NUM_ROWS)[:NUM_ROWS],
    }  # fmt: skip
    suggestion = suggest_run(write(csv_of(columns)))
    kinds = {decision.column: decision.kind for decision in suggestion.decisions}
    assert (kinds["user"], kinds["user_age"]) == ("code", "number")
    assert {kinds["Unnamed: 0"], kinds["__index_level_0__"]} == {"row number"}


def test_amounts_with_a_value_far_off_are_logarithms(write):
    even = np.random.default_rng(4).normal(100, 10, NUM_ROWS)
    far = np.append(even[1:], 100 + 11 * 4 * 10)  # it widens the deviation itself
    below = np.append(even[1:], -1000.0)
    net = np.random.default_rng(5).normal(size=NUM_ROWS) * PRICES**2  # payments and refunds
    numbers = {"even": even, "far": far, "below": below, "net": net}
    found = uses(suggest_run(write(csv_of({**BASE, **numbers}))))
    assert {name: found[name] for name in numbers} == {
        "even": "standardize", "far": "log1p", "below": "signed_log", "net": "signed_log",
    }  # fmt: skip


def test_seconds_may_have_fractions(write):
    times = 1.7e9 + np.arange(NUM_ROWS) * 37.25
    suggestion = suggest_run(write(csv_of({**BASE, "timestamp": times})))
    assert suggestion.sections["data.split"]["column"] == "timestamp"


def test_a_time_that_cannot_be_read_is_left_out_as_one(write):
    start = datetime(2024, 1, 1)
    days = [(start + timedelta(hours=i)).strftime("%a, %d %b %Y %H:%M:%S") for i in range(NUM_ROWS)]
    text = csv_of({**BASE, "when": days}, ";")
    (found,) = [d for d in suggest_run(write(text)).decisions if d.column == "when"]
    assert (found.kind, found.use) == ("time", "left out")
    assert "cannot be read, such as" in found.reason


def test_a_name_that_only_labels_have_goes_before_others(write):
    columns = {"default": LABELS[::-1], "city": CITIES, "y": LABELS}
    assert suggest_run(write(csv_of(columns))).sections["data"]["label"] == "y"
    with pytest.raises(DataError, match=r"say which, such as --label conversion$"):
        suggest_run(write(csv_of({"click": LABELS, "city": CITIES, "conversion": LABELS[::-1]})))


def test_a_line_for_excel_is_named(write):
    with pytest.raises(DataError, match="begins with 'sep=;', which only Excel reads: delete that"):
        suggest_run(write("sep=;\n" + csv_of(BASE, ";")))


def test_copies_of_rows_are_told_where_rows_are_held_out_at_random(write):
    ids = [f"{i:07x}" for i in range(NUM_ROWS)]
    twice = {name: [*values, *values] for name, values in {**BASE, "session": ids}.items()}
    (note,) = suggest_run(write(csv_of(twice))).notes
    assert note.startswith("50% of rows are copies of others")
    by_chance = {name: twice[name] for name in ("label", "city")}
    assert suggest_run(write(csv_of(by_chance))).notes == []


def test_of_numbers_alone_the_one_that_says_least_is_a_category_too(write, tmp_path):
    draws = np.random.default_rng(8)
    numbers = {"strong": LABELS + draws.normal(0, 1, NUM_ROWS), "weak": draws.normal(size=NUM_ROWS)}
    suggestion = suggest_run(write(csv_of({**numbers, "label": LABELS})))
    data = suggestion.sections["data"]
    assert (data["standardize"], data["categorical"]) == (["strong", "weak"], ["weak"])
    assert suggestion.sections["data.vocabulary"]["min_count"] == 5
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    batch = next(load_config(tmp_path / "run.toml").data.build().batches("train", 64))
    assert batch.dense.shape == (64, 2)
    assert list(batch.ids) == ["weak"]
    assert batch.dense[:, 1].std() > 0.5


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


def test_lists_of_items_and_queries_of_one_row_each_are_refused(write):
    rows = np.arange(NUM_ROWS)
    lists = ["|".join(f"p{k}" for k in (i % 40, i % 37, i % 29)) for i in rows]
    with pytest.raises(DataError, match="'items' holds several items per row, such as 'p0"):
        suggest_run(write(csv_of({"user": rows % 90, "items": lists})))
    pairs = write(csv_of({"order": rows + 0.5, "product": rows * 7 % 40}))
    with pytest.raises(DataError, match="nearly every row has a 'order' of its own"):
        suggest_run(pairs, query="order", item="product")


def test_pairs_without_a_user_or_an_item_are_skipped_in_training(write, tmp_path):
    rows = np.arange(NUM_ROWS)
    users = ["" if i % 4 == 0 else i % 90 for i in rows]
    suggestion = suggest_run(write(csv_of({"userId": users, "movieId": rows * 7 % 50})))
    assert suggestion.notes == ["25.00% of rows have no 'userId' or no 'movieId': they are skipped"]
    write_run_file(suggestion, tmp_path / "run.toml", "outsize init data.csv")
    assert load_config(tmp_path / "run.toml").data.build().num_pairs("train") > 0


def test_rows_that_do_not_fit_in_memory_are_compressed():
    sections, why = embedding_settings({"user": 50_000_000}, 10**9, memory=4 << 30)
    assert sections["embeddings"]["method"] == "cce"
    assert "more than half of the 4.3 GB" in why
    assert sections["embeddings"]["max_params"] * 4 * 3 <= 2 << 30
    sections, _ = embedding_settings({"user": 1000}, 10**9, memory=4 << 30)
    assert sections["embeddings"]["kind"] == "store"


def test_small_data_has_small_batches():
    assert training_settings(3_000)["batch_size"] == 32
    assert training_settings(1_000_000)["batch_size"] == 2048
    assert training_settings(100_000_000)["epochs"] == 1


def test_small_data_has_a_small_model():
    small, large = (model_settings(3, 2, num_train)[0] for num_train in (3_000, 1_000_000))
    assert (small["hidden"], "hidden" in large) == ([64, 32], False)


def test_rows_of_small_data_start_near_zero():
    small, large = (
        embedding_settings({"user": 1000}, num_train, memory=4 << 30)[0]["embeddings"]
        for num_train in (3_000, 1_000_000)
    )
    assert (small.get("init_std"), large.get("init_std")) == (0.05, None)


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
