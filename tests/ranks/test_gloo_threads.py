"""How Linux schedules the threads of gloo."""

import os
import sys
import threading

import pytest

from outsize.ranks.gloo_threads import starting_batch_threads

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="not Linux")


def policy_of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]


def test_threads_that_are_started_in_the_block_are_batch_threads_and_others_are_not():
    with starting_batch_threads():
        assert policy_of_a_new_thread() == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == policy_of_a_new_thread() == os.SCHED_OTHER


def test_the_policy_is_put_back_after_an_error():
    with pytest.raises(RuntimeError), starting_batch_threads():
        raise RuntimeError
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_the_user_has_chosen_stays():
    def chosen():
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        with starting_batch_threads():
            found.append(os.sched_getscheduler(0))
        found.append(os.sched_getscheduler(0))

    found = []
    thread = threading.Thread(target=chosen)
    thread.start()
    thread.join()
    assert found == [os.SCHED_BATCH] * 2
