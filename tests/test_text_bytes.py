import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.text_bytes import TextBytes, as_bytes, from_bytes

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])))


@given(TEXTS)
def test_texts_come_back_all_at_once_and_one_by_one(texts):
    saved = as_bytes(texts)
    assert from_bytes(saved["names"], saved["ends"]) == texts
    lazy = TextBytes(saved["names"], saved["ends"])
    assert [lazy[row] for row in range(len(lazy))] == texts


@pytest.mark.parametrize("ends", [[3, 2, 4], [3], [3, 5], [-1, 4]])
def test_ends_that_do_not_fit_the_bytes_are_refused(ends):
    data = torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8)
    for read in (from_bytes, TextBytes):
        with pytest.raises(ValueError, match="do not fit"):
            read(data, torch.tensor(ends))
