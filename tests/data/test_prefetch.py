import itertools
import threading

import pytest
from processes import run

from outsize.data.prefetch import one_ahead, prefetch


def helpers():
    return [t for t in threading.enumerate() if t.name == "outsize-prefetch"]


def test_items_come_in_order_and_prepared():
    assert list(prefetch(iter(range(20)), lambda item: item * 2)) == list(range(0, 40, 2))
    assert not helpers()


def test_an_error_is_raised_where_its_item_would_have_come():
    def source():
        yield 1
        yield 2
        raise KeyError("broken")

    items = prefetch(source(), lambda item: item)
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(KeyError, match="broken"):
        next(items)
    assert not helpers()


def test_no_more_than_depth_items_are_made_ahead():
    made = []
    items = prefetch(iter(range(100)), made.append, depth=3)
    next(items)
    while len(made) < 5:  # one taken, three waiting, one being handed over
        pass
    threading.Event().wait(0.05)
    assert len(made) == 5
    items.close()


def test_a_caller_that_stops_early_leaves_no_thread_behind():
    items = prefetch(itertools.count(), lambda item: item)
    assert next(items) == 0
    items.close()
    assert not helpers()


def test_a_program_that_ends_in_mid_stream_ends_cleanly():
    code = (
        "import itertools; from outsize.data.prefetch import one_ahead, prefetch;"
        "items = prefetch(itertools.count(), lambda item: item); print(next(items))"
    )
    done = run("-c", code, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_every_item_is_announced_one_item_ahead(size):
    told = []
    for item in one_ahead(iter(range(size)), told.append):
        assert told == list(range(min(item + 2, size)))
    assert told == list(range(size))
