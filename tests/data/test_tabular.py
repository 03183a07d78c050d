import gzip
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outsize.contracts import Bag
from outsize.data import TabularConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import VocabularyConfig
from outsize.data.encoding.encoder_files import encoder_from_state, encoder_state
from outsize.data.encoding.splits import ColumnSplit, HashSplit, TimeSplit
from outsize.errors import ConfigError, DataError

BY_PART = ColumnSplit("part", ("t",), ("v",), ("x",))
HEADER = "label,price,city,tags,part\n"
LINES = """1,3,Rome,a|b,t
0,,Oslo,,t
1,7,Rome,b,t
0,-2,Bern,b|c|a,t
0,1,,a,v
1,2,Lima,d,x
"""


def config_of(file, **changes):
    config = TabularConfig(
        path=(str(file),),
        label="label",
        dense=("price",),
        categorical=("city",),
        multi_valued=("tags",),
        split=BY_PART,
        shuffle=False,
    )
    return replace(config, **changes)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text(HEADER + LINES)
    return path


def whole(data, split):
    return data.examples(split, 0, data.num_examples(split))


def decode(data, split):
    """Rows as the values they stand for: (label, dense, values of each feature)."""
    batch = whole(data, split)
    rows = []
    for i in range(batch.num_examples):
        row = [int(batch.labels[i]), *batch.dense[i].tolist()]
        for name, ids in batch.ids.items():
            values = data.values(name)
            if isinstance(ids, Bag):
                ends = [*ids.offsets.tolist(), len(ids.values)]
                row.append([values[j] for j in ids.values[ends[i] : ends[i + 1]]])
            else:
                row.append(values[ids[i]])
        rows.append(tuple(row))
    return rows


def test_a_small_file_becomes_what_it_says(path):
    data = config_of(path).build()
    assert decode(data, "train") == [
        (1, 3.0, "Rome", ["a", "b"]),
        (0, 0.0, "Oslo", []),
        (1, 7.0, "Rome", ["b"]),
        (0, -2.0, "Bern", ["b", "c", "a"]),
    ]
    assert decode(data, "validation") == [(0, 1.0, None, ["a"])]
    assert decode(data, "test") == [(1, 2.0, "Lima", ["d"])]
    assert data.num_dense == 1
    assert data.vocabularies == {"city": 5, "tags": 5}


def test_ids_are_numbered_by_frequency_and_0_is_unknown(path):
    data = config_of(path).build()
    assert data.values("city")[:2] == [None, "Rome"]
    assert whole(data, "validation").ids["city"].tolist() == [0]


def test_parquet_gives_the_rows_of_the_same_csv(path):
    table = pa.table(
        {
            "label": pa.array([1, 0, 1, 0, 0, 1], pa.int8()),
            "price": [3.0, math.nan, 7.0, -2.0, 1.0, 2.0],
            "city": pa.array(["Rome", "Oslo", "Rome", "Bern", "", "Lima"]).dictionary_encode(),
            "tags": [["a", "b"], [], ["b"], ["b", "c", "a"], ["a"], ["d"]],
            "part": list("ttttvx"),
        }
    )
    pq.write_table(table, path.with_suffix(".parquet"))
    text, parquet = config_of(path).build(), config_of(path.with_suffix(".parquet")).build()
    for split in SPLITS:
        assert decode(text, split) == decode(parquet, split)


def test_compressed_text_gives_the_same_rows(path):
    packed = path.with_name("packed.csv.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert decode(config_of(packed).build(), "train") == decode(config_of(path).build(), "train")


def test_several_files_are_read_in_order(path, tmp_path):
    lines = LINES.splitlines(keepends=True)
    for number, part in ((10, lines[3:]), (2, lines[:3])):
        (tmp_path / f"day_{number}.csv").write_text(HEADER + "".join(part))
    many = config_of(tmp_path / "day_*.csv").build()
    assert decode(many, "train") == decode(config_of(path).build(), "train")


def test_integers_in_parquet_are_categories_too(tmp_path):
    columns = {"label": [0, 1, 1, 0], "user": [7, None, 7, -3], "part": list("ttvx")}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = TabularConfig(
        (str(tmp_path / "t.parquet"),), "label", categorical=("user",), split=BY_PART, shuffle=False
    ).build()
    assert decode(data, "train") == [(0, "7"), (1, None)]
    assert decode(data, "test") == [(0, "-3")]


def test_lists_in_parquet_are_bags_of_any_values(tmp_path):
    columns = {
        "label": [True, False, True],
        "seen": [[3, 5], None, [5]],
        "part": list("tvx"),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    data = TabularConfig(
        (str(tmp_path / "t.parquet"),), "label", multi_valued=("seen",), split=BY_PART
    ).build()
    assert [decode(data, split) for split in SPLITS] == [
        [(1, ["3", "5"])], [(0, [])], [(1, ["5"])],
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["categorical", "dense"])
def test_a_column_that_is_neither_text_nor_number_is_named(tmp_path, role):
    columns = {"label": [1, 0, 1], "city": ["a", "b", "c"], "odd": [{"a": 1}] * 3}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    roles = {"categorical": ("city",), role: ("odd",)}
    with pytest.raises(DataError, match="column 'odd' holds struct"):
        TabularConfig((str(tmp_path / "t.parquet"),), "label", **roles).build()


def test_numbers_are_transformed_and_what_is_missing_is_0(path):
    logged = whole(config_of(path, dense=(), log1p=("price",)).build(), "train").dense
    assert logged[:, 0].tolist() == pytest.approx([math.log(4), 0, math.log(8), 0])
    scaled = whole(config_of(path, dense=(), standardize=("price",)).build(), "train").dense
    present = np.array([3, 7, -2, 1, 2])
    expected = (np.array([3, present.mean(), 7, -2]) - present.mean()) / present.std()
    assert scaled[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-6)


def test_rare_values_and_those_beyond_the_cap_are_unknown(path):
    rare = config_of(path, vocabulary=VocabularyConfig(min_count=2)).build()
    assert rare.values("city") == [None, "Rome"]
    assert rare.values("tags")[1:] in (["b", "a"], ["a", "b"])
    capped = config_of(path, vocabulary=VocabularyConfig(max_ids=1)).build()
    assert capped.vocabularies == {"city": 2, "tags": 2}
    assert whole(capped, "train").ids["city"].tolist() == [1, 0, 1, 0]


def test_hashed_columns_need_no_vocabulary(path):
    data = config_of(path, vocabulary=VocabularyConfig(hashed=("city",), num_buckets=50)).build()
    ids = whole(data, "train").ids["city"]
    assert data.vocabularies["city"] == 51
    assert ids[0] == ids[2] != ids[1]
    assert (ids > 0).all()
    assert whole(data, "validation").ids["city"].tolist() == [0]
    with pytest.raises(DataError, match="feature 'city' has no vocabulary"):
        data.values("city")


def test_bags_are_cut_to_a_length_and_pooled_as_said(path):
    data = config_of(path, max_length=1, pooling="mean").build()
    assert [row[-1] for row in decode(data, "train")] == [["a"], [], ["b"], ["b"]]
    assert {feature.pooling for feature in data.features} == {"mean"}


def test_a_label_can_be_a_threshold_and_some_can_be_dropped(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("stars,user,part\n5,a,t\n3,b,t\n4,c,t\n1,d,t\n2,e,v\n4,f,x\n")
    config = TabularConfig(
        (str(path),),
        "stars",
        positive_from=4,
        dropped_labels=(3.0,),
        categorical=("user",),
        split=BY_PART,
        shuffle=False,
    )
    data = config.build()
    assert decode(data, "train") == [(1, "a"), (1, "c"), (0, "d")]
    assert data.vocabularies["user"] == 6


def test_a_label_can_be_a_text(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("paid,user,part\nyes,a,t\nno,b,t\n,c,t\nYES,d,v\nno,e,x\n")
    data = TabularConfig(
        (str(path),),
        "paid",
        positive_values=("yes", "YES"),
        categorical=("user",),
        split=BY_PART,
        shuffle=False,
        max_bad_rows=0.5,
    ).build()
    assert decode(data, "train") == [(1, "a"), (0, "b")]
    assert decode(data, "validation") == [(1, "d")]
    assert data.bad_rows == {"no label": 1}


def test_a_column_may_have_any_name(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text('label,"the city, or town",part\n1,Rome,t\n0,Oslo,v\n0,Bern,x\n')
    config = TabularConfig((str(path),), "label", categorical=("the city, or town",), split=BY_PART)
    assert list(config.build().vocabularies) == ["the_city__or_town"]


def test_a_file_without_a_header_gets_its_names_from_the_configuration(tmp_path):
    path = tmp_path / "bare.tsv"
    path.write_text("1\tRome\tt\n0\tOslo\tv\n0\tBern\tx\n")
    config = TabularConfig(
        (str(path),), "y", categorical=("c",), columns=("y", "c", "part"), split=BY_PART
    )
    assert decode(config.build(), "train") == [(1, "Rome")]


def test_every_rank_sees_its_part_and_together_they_see_everything(tmp_path):
    path = tmp_path / "many.csv"
    rows = "".join(f"{i % 2},{i},t{i % 7}|t{i % 3}\n" for i in range(1000))
    path.write_text("label,user,tags\n" + rows)
    config = TabularConfig(
        (str(path),), "label", categorical=("user",), multi_valued=("tags",), seed=5
    )
    data = config.build()
    alone = [batch.ids["user"] for batch in data.batches("train", 64, epoch=2)]
    ranks = [
        [batch.ids["user"] for batch in data.batches("train", 64, epoch=2, rank=r, world_size=3)]
        for r in range(3)
    ]
    for number, batch in enumerate(alone):
        assert torch.equal(batch, torch.cat([rank[number] for rank in ranks]))
    everything = torch.cat(alone)
    assert len(set(everything.tolist())) == data.num_examples("train")
    other = torch.cat([batch.ids["user"] for batch in data.batches("train", 64, epoch=3)])
    assert not torch.equal(everything, other)
    late = next(data.batches("train", 64, epoch=2, start=4))
    assert torch.equal(late.ids["user"], alone[4])


def test_shuffled_rows_keep_their_columns_together(path):
    plain = decode(config_of(path).build(), "train")
    data = config_of(path, shuffle=True, seed=3).build()
    orders = [
        [int(i) for i in data.examples("train", 0, 4, epoch).ids["city"]] for epoch in range(8)
    ]
    assert len({tuple(order) for order in orders}) > 1
    assert sorted(decode(data, "train"), key=str) == sorted(plain, key=str)


CELL = st.text("abcXYZ 0189äß漢.-_/", max_size=12)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
            CELL,
            st.lists(CELL.filter(bool), max_size=3),
        ),
        min_size=3,
        max_size=20,
    )
)
def test_encoding_then_decoding_gives_back_the_rows(tmp_path, rows):
    path = tmp_path / "p.tsv"
    parts = ["v", "x", *"t" * (len(rows) - 2)]
    lines = [
        f"{label}\t{'' if price is None else repr(price)}\t{city}\t{'|'.join(tags)}\t{part}\n"
        for (label, price, city, tags), part in zip(rows, parts, strict=True)
    ]
    path.write_text(HEADER.replace(",", "\t") + "".join(lines))
    data = config_of(path, quoted=False).build()
    decoded = [row for split in ("validation", "test", "train") for row in decode(data, split)]
    expected = [
        (label, 0.0 if price is None else float(np.float32(price)), city or None, tags)
        for label, price, city, tags in rows
    ]
    assert decoded == expected


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\*\.csv: no such file"):
        config_of(tmp_path / "nowhere*.csv").build()


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match=r"empty\.csv is empty"):
        config_of(tmp_path / "empty.csv").build()


def test_a_header_without_rows_is_no_data(tmp_path):
    (tmp_path / "bare.csv").write_text(HEADER)
    with pytest.raises(DataError, match="there is no row of data"):
        config_of(tmp_path / "bare.csv").build()


def test_a_missing_column_is_named_with_those_that_exist(path):
    with pytest.raises(DataError, match="no column 'town'; it has: label, price, city"):
        config_of(path, categorical=("town",)).build()


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    (tmp_path / "text.parquet").write_text("label,city\n1,Rome\n")
    with pytest.raises(DataError, match=r"text\.parquet is not a readable Parquet file"):
        config_of(tmp_path / "text.parquet").build()


def test_a_split_without_rows_is_named(path):
    with pytest.raises(DataError, match="no rows in the validation split of 6 rows"):
        config_of(path, split=ColumnSplit("part", ("t",), ("none",), ("x",))).build()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": ()}, "path is empty"),
        ({"categorical": (), "multi_valued": ()}, "name at least one"),
        ({"log1p": ("price",)}, "column 'price' is used twice"),
        ({"categorical": ("a b", "a_b")}, "features of the same name"),
        ({"vocabulary": VocabularyConfig(hashed=("nowhere",))}, "not a categorical column"),
        ({"max_bad_rows": 1.5}, "max_bad_rows is a share"),
        ({"subsample": 0}, "subsample must be >= 1"),
        ({"separator": ""}, "need a separator"),
        ({"positive_values": ("yes",), "positive_from": 2.0}, "positive_values are texts"),
        ({"delimiter": "::"}, "delimiter must be one character"),
        ({"max_length": -1}, "max_length must be >= 0"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of("x.csv", **changes)


def test_a_vocabulary_that_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="min_count must be >= 1, but got 0"):
        VocabularyConfig(min_count=0)


def test_rows_are_split_by_hash_unless_told_otherwise(tmp_path):
    path = tmp_path / "many.csv"
    path.write_text("label,user\n" + "".join(f"{i % 2},{i}\n" for i in range(2000)))
    data = TabularConfig((str(path),), "label", categorical=("user",)).build()
    assert TabularConfig((str(path),), "label", categorical=("user",)).split == HashSplit()
    sizes = [data.num_examples(split) for split in SPLITS]
    assert sum(sizes) == 2000
    assert sizes == pytest.approx([1600, 200, 200], abs=60)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_words_for_missing_values_are_missing_in_every_column(tmp_path, form):
    path = tmp_path / f"clicks.{form}"
    text = LINES.replace("1,3,Rome", "1,NA,?").replace("1,7,Rome", "1,?,Rome")
    if form == "csv":
        path.write_text(HEADER + text)
    else:
        rows = [line.split(",") for line in text.splitlines()]
        columns = dict(
            zip(HEADER.strip().split(","), map(list, zip(*rows, strict=True)), strict=True)
        )
        pq.write_table(pa.table(columns), path)
    data = config_of(path, missing=("NA", "?")).build()
    batch = data.examples("train", 0, 4)
    assert batch.dense[:, 0].tolist() == [0, 0, 0, -2]
    assert batch.ids["city"].tolist()[0] == 0
    assert batch.ids["city"].tolist()[2] > 0
    facts, tensors = encoder_state(data.row_encoder())
    assert encoder_from_state(facts, tensors).recipe.missing == ("NA", "?")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_decimal_commas_are_read_where_asked_for(tmp_path, form):
    path = tmp_path / f"clicks.{form}"
    prices = ["3,25", "1.234,5", "12.345", "-2"]
    rows = [["1", price, "Rome", "a", "t"] for price in prices]
    rows += [["0", "1", "Oslo", "b", part] for part in "vx"]
    names = HEADER.strip().split(",")
    if form == "csv":
        path.write_text("\n".join(";".join(row) for row in [names, *rows]) + "\n")
    else:
        columns = map(list, zip(*rows, strict=True))
        pq.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
    config = config_of(path, decimal=",", delimiter=";" if form == "csv" else "")
    data = config.build()
    assert whole(data, "train").dense[:, 0].tolist() == [3.25, 1234.5, 12345, -2]
    facts, tensors = encoder_state(data.row_encoder())
    assert encoder_from_state(facts, tensors).recipe.decimal == ","
    with pytest.raises(DataError, match="'price' that is not a number"):
        replace(config, decimal=".", cache=str(tmp_path / "other")).build()


def test_a_decimal_point_is_no_number_where_commas_are_decimal(path):
    path.write_text(HEADER + LINES.replace("1,3,Rome", "1,3.5,Rome"))
    with pytest.raises(DataError, match="'price' that is not a number"):
        config_of(path, decimal=",").build()
    with pytest.raises(ConfigError, match=r'decimal must be "\." or ","'):
        config_of(path, decimal=";")


def test_a_recipe_without_newer_keys_keeps_the_hash_of_its_encoded_data(tmp_path):
    config = config_of(tmp_path / "clicks.csv", path=("clicks.csv",), split=TimeSplit("price"))
    digest = "bf206632e3de9840fac3094617c2ef0c27a953f46ecb911e50a392fcbd976269"
    assert config.recipe().digest() == digest
    assert replace(config, missing=("NA",)).recipe().digest() != digest
    assert replace(config, decimal=",").recipe().digest() != digest
    assert replace(config, signed_log=("net",)).recipe().digest() != digest
    assert replace(config, split=TimeSplit("price", format="%Y")).recipe().digest() != digest


@pytest.mark.parametrize(
    ("times", "form", "words"),
    [
        (
            ["2024-01-01", "2024-01-03 08:00", "2024-01-02T09:30:00Z", "", "noon"],
            "",
            "a number or time",
        ),
        (["01.01.2024", "03.01.2024", "02.01.2024", "", "2024"], "%d.%m.%Y", "a time"),
    ],
)
def test_times_written_as_text_split_rows(tmp_path, times, form, words):
    path = tmp_path / "clicks.csv"
    lines = [f"1,{time},Rome,a,t" for time in times]
    path.write_text("\n".join([HEADER.strip().replace("price", "day"), *lines, ""]))
    split = TimeSplit("day", validation=0.3, test=0.3, format=form)
    config = config_of(path, dense=(), split=split, max_bad_rows=0.5)
    data = config.build()
    assert [data.num_examples(part) for part in SPLITS] == [1, 1, 1]
    with pytest.raises(DataError, match=f"'day' that is not {words}"):
        replace(config, max_bad_rows=0.0, cache=str(tmp_path / "other")).build()
