"""How values that are not text were written in the training data.

A vocabulary knows texts. The same value may be read as text by one reader and as a number or a
truth value by another: "5.0" of a CSV file is 5.0 in a frame, and "True" is true. Of the ways to
write such a value, the one that the vocabulary knows best is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outsize.data.encoding.ids import UNKNOWN, IdEncoder, VocabularyIds
from outsize.data.encoding.text_keys import Column

Spelling = Callable[[Any], str]


def as_trained(column: Column, encoder: IdEncoder) -> Column:
    """A column of numbers or truth values as text, written as the vocabulary has it.

    Other columns, and those without a vocabulary, are unchanged: they become text in general.
    """
    import pyarrow as pa

    spellings = _spellings(column.type)
    if not spellings or not isinstance(encoder, VocabularyIds):
        return column
    coded = column.dictionary_encode()
    plain = coded.dictionary.cast(pa.large_string())
    best, most = plain, _num_known(plain, encoder)
    values = coded.dictionary.to_pylist()
    for spelling in spellings:
        if most == len(values):
            break
        texts = pa.array([spelling(value) for value in values], pa.large_string())
        known = _num_known(texts, encoder)
        if known > most:
            best, most = texts, known
    return pa.DictionaryArray.from_arrays(coded.indices, best)


def _num_known(texts: Column, encoder: VocabularyIds) -> int:
    return int((encoder.ids_of(texts) != UNKNOWN).sum())


def _spellings(kind: Any) -> list[Spelling]:
    """Ways to write a value of a type, besides the way of Arrow."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return [str, lambda value: str(value).upper(), lambda value: str(int(value))]
    if pa.types.is_floating(kind):
        return [repr]
    if pa.types.is_integer(kind):
        return [lambda value: f"{value}.0"]
    return []
