"""Run files for data that is not shipped: they are valid, and fit the data where it is there."""

from pathlib import Path

import pytest

from outsize.data.click_data import SPLITS
from outsize.training import load_config
from outsize.training.config import RunConfig

RUN_FILES = sorted((Path(__file__).parent.parent / "examples" / "real").glob("*.toml"))
SHARED = {
    "sba_loans": ("data.path=['{}/ctr/sba_loans.parquet']", 897_167),
    "us_flights": ("data.path=['{}/ctr/us_flights_2024_01.parquet']", 558_715),
    "ml1m_features": ("data.path=['{}/ctr/ml1m.parquet']", 1_000_209),
    "ml1m": ("data.path='{}/ctr/ml1m.parquet'", 739_012),
    "criteo": ("data.path=['{}/ctr/criteo_kaggle_8k.parquet']", 8_000),
}


def test_there_are_run_files():
    assert {"sba_loans", "us_flights", "ml1m", "criteo", "avazu"} <= {p.stem for p in RUN_FILES}


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.stem)
def test_every_run_file_for_real_data_is_valid(path):
    assert isinstance(load_config(path), RunConfig)


@pytest.mark.parametrize(
    ("name", "file", "num_pairs"),
    [("amazon_book", "amazon_book_kgat", 846_434), ("ml1m_two_tower", "ml1m", 575_281)],
)
def test_a_run_file_of_interactions_fits_its_data(name, file, num_pairs, shared_data):
    (path,) = (path for path in RUN_FILES if path.stem == name)
    config = load_config(path, [f"data.path=['{shared_data}/ctr/{file}.parquet']"])
    data = config.data.build()
    assert sum(data.num_pairs(split) for split in SPLITS) == num_pairs
    assert min(len(data.relevant(split).values) for split in SPLITS) > 5_000


@pytest.mark.parametrize("name", SHARED)
def test_a_run_file_fits_its_data(name, shared_data, tmp_path):
    setting, num_rows = SHARED[name]
    (path,) = (path for path in RUN_FILES if path.stem == name)
    settings = [setting.format(shared_data), f"data.cache={tmp_path}"]
    config = load_config(path, settings)
    data = config.data.build()
    splits = ("train", "validation") if name == "ml1m" else SPLITS
    assert sum(data.num_examples(split) for split in splits) == num_rows
    assert min(data.num_examples(split) for split in splits) > 500
    for split in SPLITS:
        rate = data.examples(split, 0, data.num_examples(split)).labels.mean()
        assert 0.05 < rate < 0.85
