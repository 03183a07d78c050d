import math
import random
import resource
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from outsize.bench.encode import write_criteo_like
from outsize.data import CriteoConfig
from outsize.data.click_data import SPLITS
from outsize.data.encoding import VocabularyConfig
from outsize.errors import ConfigError


def line(label, counts, values):
    return "\t".join([str(label), *map(str, counts), *values]) + "\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "train.txt"
    draw = random.Random(0)
    lines = [
        line(
            i % 2,
            [i, "", -2, *(draw.randrange(100) for _ in range(10))],
            [f"{draw.randrange(1 << 32):08x}" if j else "" for j in range(26)],
        )
        for i in range(140)
    ]
    path.write_text("".join(lines))
    return path


def test_counts_are_logarithms_and_missing_or_negative_ones_0(path):
    dense = CriteoConfig((str(path),), shuffle=False).build().examples("train", 0, 5).dense
    assert dense.shape == (5, 13)
    assert dense[:, 0].tolist() == pytest.approx([math.log(1 + i) for i in range(5)])
    assert dense[:, 1:3].tolist() == [[0, 0]] * 5


def test_the_last_of_seven_days_is_halved_into_validation_and_test(path):
    data = CriteoConfig((str(path),), shuffle=False).build()
    assert [data.num_examples(split) for split in SPLITS] == [120, 10, 10]
    first = {split: data.examples(split, 0, 1).dense[0, 0].item() for split in SPLITS}
    assert first == pytest.approx({"train": 0, "validation": math.log(121), "test": math.log(131)})


def test_with_several_files_the_last_one_is_the_last_day(path, tmp_path):
    lines = path.read_text().splitlines(keepends=True)
    for day, (low, high) in enumerate([(0, 50), (50, 100), (100, 140)]):
        (tmp_path / f"day_{day}").write_text("".join(lines[low:high]))
    data = CriteoConfig((str(tmp_path / "day_*"),), shuffle=False).build()
    assert [data.num_examples(split) for split in SPLITS] == [100, 20, 20]
    assert data.examples("validation", 0, 1).dense[0, 0].item() == pytest.approx(math.log(101))


def test_missing_values_are_unknown(path):
    data = CriteoConfig((str(path),)).build()
    assert data.vocabularies["C1"] == 1
    assert data.examples("train", 0, 120).ids["C1"].unique().tolist() == [0]
    assert data.vocabularies["C2"] == 141


def test_every_eighth_row_is_taken_across_files(path, tmp_path):
    lines = path.read_text().splitlines(keepends=True)
    for day, (low, high) in enumerate([(0, 50), (50, 140)]):
        (tmp_path / f"day_{day}").write_text("".join(lines[low:high]))
    config = CriteoConfig((str(tmp_path / "day_*"),), subsample=8, shuffle=False)
    dense = config.build().examples("train", 0, 7).dense[:, 0]
    assert dense.exp().round().tolist() == [1, 9, 17, 25, 33, 41, 49]


def test_ids_can_be_the_hexadecimal_value_modulo_a_number(path):
    value = path.read_text().splitlines()[0].split("\t")[15]
    moduli = tuple(range(1001, 1027))
    data = CriteoConfig((str(path),), modulus=moduli, shuffle=False).build()
    assert list(data.vocabularies.values()) == [modulus + 1 for modulus in moduli]
    assert data.examples("train", 0, 1).ids["C2"].item() == 1 + int(value, 16) % 1002
    with pytest.raises(ConfigError, match="modulus must be one number or 26"):
        CriteoConfig(modulus=(5, 6))


def test_quotes_in_a_value_are_ordinary_characters(path):
    text = path.read_text().splitlines(keepends=True)
    text[3] = text[3].rstrip("\n") + '"\n'
    path.write_text("".join(text))
    data = CriteoConfig((str(path),), shuffle=False).build()
    assert data.bad_rows == {}
    assert sum(value is not None and value.endswith('"') for value in data.values("C26")) == 1


def test_the_genuine_first_rows_of_the_kaggle_file_are_read(shared_data, tmp_path):
    file = shared_data / "ctr" / "criteo_kaggle_8k.parquet"
    table = pq.read_table(file)
    data = CriteoConfig((str(file),), cache=str(tmp_path), shuffle=False).build()
    assert sum(data.num_examples(split) for split in SPLITS) == table.num_rows
    assert data.bad_rows == {}
    first, batch = table.slice(0, 1).to_pylist()[0], data.examples("train", 0, 1)
    assert batch.labels.item() == first["label"]
    for name in ("C1", "C5", "C26"):
        assert data.values(name)[batch.ids[name].item()] == first[name]


def test_text_and_parquet_of_the_genuine_rows_give_the_same_data(shared_data, tmp_path):
    file = shared_data / "ctr" / "criteo_kaggle_8k.parquet"
    rows = pq.read_table(file).slice(0, 500).drop_columns("split")
    text = tmp_path / "train.txt"
    with text.open("w") as out:
        for row in rows.to_pylist():
            cells = ["" if v is None or v != v else v for v in row.values()]
            out.write("\t".join(f"{v:.0f}" if isinstance(v, float) else str(v) for v in cells))
            out.write("\n")
    pq.write_table(rows, tmp_path / "rows.parquet")
    one, two = (
        CriteoConfig((str(tmp_path / name),), shuffle=False).build()
        for name in ("train.txt", "rows.parquet")
    )
    assert one.vocabularies == two.vocabularies
    for split in SPLITS:
        left, right = (data.examples(split, 0, data.num_examples(split)) for data in (one, two))
        assert left.dense.tolist() == right.dense.tolist()
        assert all(left.ids[name].tolist() == right.ids[name].tolist() for name in left.ids)


MEASURED = """
import resource, sys
from outsize.data import CriteoConfig
import pyarrow.csv, pyarrow.parquet, rich.progress
from outsize.data.encoding import VocabularyConfig
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
vocabulary = VocabularyConfig(max_held=int(sys.argv[2]))
CriteoConfig((sys.argv[1],), vocabulary=vocabulary).build()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_large_file_is_encoded_in_bounded_memory(tmp_path):
    path = tmp_path / "train.txt"
    write_criteo_like(path, num_bytes=300_000_000, seed=0)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path), "1000000"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 500_000_000
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 2_000_000_000


def test_a_bound_on_what_is_held_keeps_the_frequent_values(tmp_path):
    path = tmp_path / "train.txt"
    rows = [
        line(0, [1] * 13, ["00000001" if i % 2 else f"{i:08x}", *["0000000a"] * 25])
        for i in range(4000)
    ]
    path.write_text("".join(rows))
    config = CriteoConfig((str(path),), vocabulary=VocabularyConfig(max_held=1000), shuffle=False)
    data = config.build()
    assert data.vocabularies["C1"] < 1000
    assert data.values("C1")[1] == "00000001"
