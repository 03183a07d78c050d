"""Long work asks between its pieces whether to stop."""

import threading

import pytest

from outsize.interrupts import (
    StopRequested,
    also_stopping_when,
    check_stop,
    stop_requested,
    stopping_when,
)


def test_work_stops_at_the_piece_after_it_is_asked_to():
    event, done = threading.Event(), []

    def work():
        for piece in range(10):
            check_stop()
            done.append(piece)
            if piece == 3:
                event.set()

    with stopping_when(event.is_set), pytest.raises(StopRequested):
        work()
    assert done == [0, 1, 2, 3]


def test_nothing_stops_outside_of_the_context_that_asks():
    with stopping_when(lambda: True):
        assert stop_requested()
        with stopping_when(lambda: False):
            check_stop()  # the innermost counts
        assert stop_requested()
    check_stop()


def test_a_stop_is_of_one_thread_alone():
    found = []
    with stopping_when(lambda: True):
        other = threading.Thread(target=lambda: found.append(stop_requested()))
        other.start()
        other.join()
    assert found == [False]


def test_a_context_may_ask_besides_the_one_around_it():
    for inner, outer in ((False, True), (True, False), (False, False)):
        with stopping_when(lambda it=outer: it), also_stopping_when(lambda it=inner: it):
            assert stop_requested() == (inner or outer)
    with also_stopping_when(lambda: True):
        assert stop_requested()
