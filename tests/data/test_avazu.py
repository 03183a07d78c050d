import pytest

from outsize.data import AvazuConfig
from outsize.data.avazu import CATEGORICAL
from outsize.data.click_data import SPLITS
from outsize.errors import DataError


def write(path, hours):
    rest = ",".join("7" for _ in CATEGORICAL)
    lines = [f"{i},{i % 2},{hour},{rest}\n" for i, hour in enumerate(hours)]
    path.write_text(f"id,click,hour,{','.join(CATEGORICAL)}\n" + "".join(lines))
    return AvazuConfig((str(path),), shuffle=False, max_bad_rows=0.2)


def test_the_hour_becomes_hour_of_day_and_weekday(tmp_path):
    # 21 October 2014 was a Tuesday.
    data = write(
        tmp_path / "train.csv", [f"141021{i:02d}" for i in (0, 13, *range(14, 22))]
    ).build()
    batch = data.examples("train", 0, data.num_examples("train"))
    hours = [data.values("hour_of_day")[id_] for id_ in batch.ids["hour_of_day"]]
    days = [data.values("weekday")[id_] for id_ in batch.ids["weekday"]]
    assert hours[:2] == ["00", "13"]
    assert days[:2] == ["1", "1"]


def test_the_latest_hours_are_held_out(tmp_path):
    hours = [f"1410{21 + i // 24}{i % 24:02d}" for i in range(100)]
    data = write(tmp_path / "train.csv", hours).build()
    assert [data.num_examples(split) for split in SPLITS] == [80, 10, 10]
    assert len(data.vocabularies) == 2 + len(CATEGORICAL)
    assert "id" not in data.vocabularies


def test_an_hour_of_another_form_makes_a_bad_row(tmp_path):
    hours = [f"141021{i:02d}" for i in range(24)]
    data = write(tmp_path / "train.csv", [*hours, "14102199", "2014-10-21"]).build()
    assert sum(data.bad_rows.values()) == 2
    assert data.bad_rows["a value of 'hour' of another form"] == 1


def test_a_file_without_the_hour_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text("id,click\n1,0\n")
    with pytest.raises(DataError, match="no column"):
        AvazuConfig((str(tmp_path / "train.csv"),)).build()


def test_the_genuine_first_rows_are_read(shared_data, tmp_path):
    file = shared_data / "ctr" / "avazu_kaggle_9k.parquet"
    data = AvazuConfig((str(file),), split="hash", cache=str(tmp_path)).build()
    assert sum(data.num_examples(split) for split in SPLITS) == 8999
    assert (data.values("hour_of_day"), data.values("weekday")) == ([None, "00"], [None, "1"])
    assert data.bad_rows == {}
