"""Texts as rows of tokens: grades, shared tables, and rows as wide as they must be."""

import pyarrow as pa
import torch

from outsize.data import TextPairs, Texts, TokenData
from outsize.data.texts.token_data import TokenFeature, text_batches, training_queries

SPLITS = {
    "train": ([0, 1], [0, 1]),
    "validation": ([2, 2], [3, 1]),
    "test": ([3, 3, 3, 4], [4, 0, 2, 1]),
}
GRADES = {"train": [1, 1], "validation": [2, 1], "test": [1, 3, 2, 1]}


def column(prefix, num):
    return pa.array([f"{prefix}{n}" for n in range(num)], pa.large_string())


def make(tables=("tokens", "tokens")):
    texts = TextPairs(
        Texts(column("q", 5), column("query ", 5)),
        Texts(column("d", 5), column("item ", 5)),
        {s: (torch.tensor(q), torch.tensor(i)) for s, (q, i) in SPLITS.items()},
        {split: torch.tensor(grades) for split, grades in GRADES.items()},
    )
    ids = torch.tensor([[0, 1, 2], [3, -1, -1], [1, 1, -1], [2, -1, -1], [4, 4, 4]]).int()
    queries = TokenFeature("query_tokens", tables[0], 5, ids)
    return TokenData(texts, queries, TokenFeature("item_tokens", tables[1], 5, ids[:, :2]))


def test_grades_are_in_the_order_of_the_relevant_items():
    data = make()
    assert data.relevant("test").values.tolist() == [0, 2, 4, 1]
    assert data.grades("test").tolist() == [3, 2, 1, 1]
    assert data.relevant("validation").values.tolist() == [1, 3]
    assert data.grades("validation").tolist() == [1, 2]


def test_queries_without_a_training_pair_are_evaluated():
    assert (make().relevant("test").counts() > 0).tolist() == [False] * 3 + [True] * 2


def test_rows_are_as_wide_as_the_longest_of_them():
    data = make()
    taken = data.queries.take(torch.tensor([1, 2]))["query_tokens"]
    assert taken.dtype == torch.int64
    assert taken.tolist() == [[3, -1], [1, 1]]
    assert data.queries.take(torch.tensor([], dtype=torch.int64))["query_tokens"].shape == (0, 1)


def test_tokens_of_a_shared_table_are_counted_together():
    data = make()
    assert [feature.table for feature in data.features] == ["tokens", "tokens"]
    assert data.count_ids()["tokens"].tolist() == [2, 2, 1, 2, 0]
    apart = make(("query_tokens", "item_tokens")).count_ids()
    assert apart["query_tokens"].tolist() == [1, 1, 1, 1, 0]
    assert apart["item_tokens"].tolist() == [1, 1, 0, 1, 0]
    assert make(("", "")).features == ()


def test_texts_come_in_batches():
    texts = make().texts
    assert training_queries(texts).to_pylist() == [0, 1]
    assert [t for batch in text_batches(texts.items.texts) for t in batch] == [
        f"item {n}" for n in range(5)
    ]
    rows = training_queries(texts)
    assert list(text_batches(texts.queries.texts, rows)) == [["query 0", "query 1"]]
