import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from outsize.data.encoding.column_values import to_text
from outsize.data.encoding.ids import Bags, ModulusIds, runs
from outsize.data.encoding.text_keys import text_buffers, text_keys, words_at


@given(st.lists(st.text(max_size=40), max_size=40))
@example(["", "\x01"])
@example(["\x01", "\x02\0", "12345678a", "22345678a\0"])
def test_equal_texts_have_equal_keys_and_different_texts_different_ones(texts):
    keys = text_keys(pa.array(texts, pa.large_string())).tolist()
    assert len(set(keys)) == len(set(texts))
    assert len(set(zip(texts, keys, strict=True))) == len(set(texts))


def test_a_key_does_not_depend_on_its_neighbours():
    alone = text_keys(pa.array(["seventeen letters"]))
    among = text_keys(pa.array(["x", "seventeen letters", "a text longer than all of the others"]))
    assert alone[0] == among[1]
    assert text_keys(pa.array([""]))[0] == text_keys(pa.array(["x", ""]))[1]


def test_a_slice_of_an_array_has_the_keys_of_its_values():
    values = pa.array(["one", "two", "three", "four"])
    assert text_keys(values.slice(1, 2)).tolist() == text_keys(values).tolist()[1:3]


def test_zero_bytes_at_the_end_of_a_text_count():
    keys = text_keys(pa.array(["a", "a\0", "a\0\0", ""]))
    assert len(set(keys.tolist())) == 4


def test_keys_stay_the_same_between_versions():
    keys = text_keys(pa.array(["68fd1e64", "", "a longer text"])).tolist()
    assert keys == KNOWN_KEYS


def test_words_hold_the_bytes_of_a_value_and_no_others():
    data, starts, lengths = text_buffers(pa.array(["ab", "cdefghijkl"]))
    words = words_at(data, starts, lengths)
    assert [word.tobytes() for word in words] == [b"ab\0\0\0\0\0\0", b"cdefghij"]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30), st.integers(1, 2**20))
def test_hexadecimal_values_are_reduced_by_the_modulus(numbers, modulus):
    ids = ModulusIds(modulus).ids_of(pa.array([f"{number:08x}" for number in numbers]))
    assert ids.tolist() == [1 + number % modulus for number in numbers]


def test_a_value_that_is_not_hexadecimal_is_unknown_to_a_modulus():
    ids = ModulusIds(10).ids_of(pa.array(["0000000g", "123456789", "A", ""]))
    assert ids.tolist() == [0, 0, 1, 0]


@given(
    st.lists(st.lists(st.sampled_from(["a", "bb", "", "c d"]), max_size=5), max_size=8),
    st.integers(0, 3),
)
def test_bags_hold_the_values_between_separators(rows, max_length):
    texts = ["|".join(row) or None for row in rows]
    bags = Bags.split(to_text(pa.array(texts, pa.large_string()))[0], "|", max_length)
    values, lengths = bags.rows(np.arange(len(bags.tokens.values)) + 1)
    expected = [[value for value in row if value][: max_length or None] for row in rows]
    assert lengths.tolist() == [len(row) for row in expected]
    names = [None, *bags.tokens.values.to_pylist()]
    assert [names[value] for value in values] == [value for row in expected for value in row]
    counts = dict(zip(names[1:], bags.token_counts().tolist(), strict=True))
    flat = [value for row in expected for value in row]
    assert counts == {name: flat.count(name) for name in counts}


def test_runs_follow_one_another():
    assert runs(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


KNOWN_KEYS = [8320184614552457199, 6238072747940578789, 1536325432791692030]
