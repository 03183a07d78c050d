"""Words, their pieces, and the tokenizer that is learned from texts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.json_files import SchemaError
from outsize.models.text import WordTokenizer, encode_all
from outsize.models.text.words import pieces_of, words_of

TEXTS = ["merge sorted lists", "sort lists in place", "parse JSON", "parse a list of numbers"]


def learn(texts=TEXTS, **settings):
    defaults = {"max_words": 100, "min_count": 2, "num_buckets": 40, "max_tokens": 8,
                "distinct": True}  # fmt: skip
    return WordTokenizer.learn(texts, **{**defaults, **settings})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Merge sorted-lists!", ["merge", "sorted", "lists"]),
        ("snake_case and camelCase", ["snake", "case", "and", "camel", "case"]),
        ("HTTPServer parseURLs utf8", ["http", "server", "parse", "ur", "ls", "utf8"]),
        ("Straße ΑΒΓ ﬁle", ["straße", "αβγ", "file"]),
        ("", []),
        ("_ -- !", []),
    ],
)
def test_texts_are_split_into_words_in_lower_case(text, words):
    assert words_of(text) == words


def test_words_that_are_alike_share_pieces():
    one, same, other = (set(pieces_of(w, 10_000)) for w in ("sorting", "sorted", "banana"))
    assert len(one & same) >= 3
    assert not one & other


@given(st.text(max_size=40), st.integers(1, 50))
def test_pieces_are_distinct_buckets_of_any_text(word, num_buckets):
    pieces = pieces_of(word, num_buckets)
    assert len(set(pieces)) == len(pieces) >= 1
    assert all(0 <= piece < num_buckets for piece in pieces)


def test_frequent_words_are_tokens_and_others_are_pieces():
    tokenizer = learn()
    assert tokenizer.words == ["lists", "parse"]
    assert tokenizer.num_tokens == 1 + 2 + 40
    assert tokenizer.tokens_of("Lists") == [1]
    pieces = tokenizer.tokens_of("merge")
    assert len(pieces) > 1
    assert min(pieces) >= 3


def test_the_order_of_texts_does_not_matter():
    one, other = learn(TEXTS), learn(TEXTS[::-1])
    assert one.words == other.words
    assert one.weights.tolist() == other.weights.tolist()


def test_a_bag_counts_a_word_once_and_a_sequence_each_time():
    text = "lists parse lists"
    assert learn().tokens_of(text) == [1, 2]
    assert learn(distinct=False).tokens_of(text) == [1, 2, 1]


def test_texts_without_words_have_a_token_and_long_ones_are_cut():
    tokenizer = learn(max_tokens=3)
    found = tokenizer.encode(["???", "lists parse merge numbers", "lists"])
    assert found.ids[0].tolist() == [0, -1, -1]
    assert found.ids.shape == (3, 3)
    assert found.num_cut == 1
    assert found.ids[2].tolist() == [1, -1, -1]


@given(st.lists(st.text(max_size=30), max_size=12))
def test_batches_of_texts_are_tokenized_as_all_at_once(texts):
    tokenizer = learn()
    batches = (texts[first : first + 3] for first in range(0, len(texts), 3))
    found = encode_all(tokenizer, batches, False)
    at_once = tokenizer.encode(texts)
    assert torch.equal(found.ids, at_once.ids)
    assert found.num_cut == at_once.num_cut


@given(st.lists(st.text(max_size=30), max_size=10), st.text(max_size=30))
def test_a_tokenizer_is_restored_from_its_state(texts, text):
    tokenizer = learn(texts, min_count=1)
    restored = WordTokenizer.from_state(*tokenizer.state())
    assert restored.tokens_of(text) == tokenizer.tokens_of(text)
    assert restored.weights.tolist() == tokenizer.weights.tolist()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", torch.ones(2)),
        ("ends", torch.tensor([3, 1])),
        ("ends", torch.tensor([2, 9])),
        ("words", torch.full((10,), 255, dtype=torch.uint8)),
        ("words", torch.zeros(10)),
    ],
)
def test_a_damaged_state_is_refused(name, value):
    facts, tensors = learn().state()
    with pytest.raises(SchemaError):
        WordTokenizer.from_state(facts, {**tensors, name: value})
