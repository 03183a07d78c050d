from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outsize.data import MovieLensConfig

# user, movie, rating, timestamp: user 1 ends with two ratings at the same time
RATINGS = [
    (1, 10, 5, 100), (1, 11, 3, 900), (1, 12, 1, 300), (2, 10, 4, 50), (1, 13, 4, 400),
    (1, 14, 2, 400), (2, 11, 5, 40), (2, 12, 2, 60), (3, 10, 4, 1), (1, 15, 4.5, 200),
]  # fmt: skip
TRAIN = {("1", "10", 1), ("1", "12", 0), ("1", "15", 1), ("2", "11", 1)}
VALIDATION = {("1", "13", 1), ("2", "10", 1)}
TEST = {("1", "14", 0), ("2", "12", 0), ("3", "10", 1)}


def write(folder, name):
    path = folder / name
    if name.endswith(".dat"):
        path.write_text("".join("::".join(map(str, row)) + "\n" for row in RATINGS))
    elif name.endswith(".csv"):
        lines = [",".join(map(str, row)) + "\n" for row in RATINGS]
        path.write_text("userId,movieId,rating,timestamp\n" + "".join(lines))
    else:
        names = ("user_id", "movie", "rating", "timestamp")
        columns = dict(zip(names, zip(*RATINGS, strict=True), strict=True))
        columns["movie"] = [str(movie) for movie in columns["movie"]]
        columns["genres"] = ["Drama War" if m == "10" else "War" for m in columns["movie"]]
        pq.write_table(pa.table({k: pa.array(list(v)) for k, v in columns.items()}), path)
    return str(path)


def decode(data, split):
    batch = data.examples(split, 0, data.num_examples(split))
    user, movie = list(data.vocabularies)[:2]
    return {
        (data.values(user)[u], data.values(movie)[m], int(label))
        for u, m, label in zip(batch.ids[user], batch.ids[movie], batch.labels, strict=True)
    }


@pytest.mark.parametrize("name", ["ratings.dat", "ratings.csv", "table.parquet"])
def test_each_form_of_the_ratings_gives_the_same_examples(tmp_path, name):
    data = MovieLensConfig(write(tmp_path, name)).build()
    assert decode(data, "train") == TRAIN
    assert decode(data, "validation") == VALIDATION
    assert decode(data, "test") == TEST
    assert data.num_dense == 0


def test_both_held_out_ratings_can_validate_and_are_the_test_too(tmp_path):
    data = MovieLensConfig(write(tmp_path, "ratings.csv"), held_out="validation").build()
    assert decode(data, "train") == TRAIN
    assert decode(data, "validation") == decode(data, "test") == VALIDATION | TEST


def test_side_features_are_further_columns(tmp_path):
    path = write(tmp_path, "table.parquet")
    data = MovieLensConfig(path, side_multi_valued=("genres",), separator=" ").build()
    assert data.vocabularies["genres"] == 3
    assert {feature.name: feature.pooling for feature in data.features}["genres"] == "mean"


def test_the_protocol_on_a_million_ratings(shared_data, tmp_path):
    path = shared_data / "ctr" / "ml1m.parquet"
    data = MovieLensConfig(str(path), cache=str(tmp_path), shuffle=False).build()
    ratings = Counter(pq.read_table(path, columns=["rating"])["rating"].to_pylist())
    kept = sum(count for rating, count in ratings.items() if rating != 3)
    assert data.num_examples("validation") == data.num_examples("test") == 6040
    assert data.num_examples("train") == kept - 2 * 6040
    users = data.examples("test", 0, 6040).ids["user_id"]
    assert users.unique().numel() == 6040
    positive = data.examples("train", 0, kept - 2 * 6040).labels.sum().item()
    held = sum(
        data.examples(split, 0, 6040).labels.sum().item() for split in ("validation", "test")
    )
    assert positive + held == ratings[4] + ratings[5]
