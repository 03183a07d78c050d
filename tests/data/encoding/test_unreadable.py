import io

from hypothesis import given
from hypothesis import strategies as st

from outsize.data.encoding.unreadable import UNREADABLE, ReadableStream


def read_all(data, size):
    stream, pieces = ReadableStream(io.BytesIO(data)), []
    while piece := stream.read(size):
        assert len(piece) <= size
        pieces.append(piece)
    return b"".join(pieces)


@given(st.text(), st.integers(1, 9))
def test_valid_text_passes_unchanged(text, size):
    assert read_all(text.encode(), size) == text.encode()


@given(st.binary(), st.integers(1, 9))
def test_what_comes_out_can_always_be_decoded_and_keeps_its_lines(data, size):
    out = read_all(data, size).decode()
    assert out.count("\n") == data.decode("utf-8", "replace").count("\n")
    assert (UNREADABLE in out) != _is_valid(data)


def _is_valid(data):
    try:
        return UNREADABLE not in data.decode()
    except UnicodeDecodeError:
        return False


def test_a_character_cut_by_a_block_or_by_the_end_is_seen():
    assert read_all("aä".encode(), 2) == "aä".encode()
    assert read_all("aä".encode()[:-1], 2).decode() == "a" + UNREADABLE
