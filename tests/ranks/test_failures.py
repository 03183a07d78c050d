import signal
from pathlib import Path

import pytest
import torch
from processes import Ranks

from outsize.errors import CheckpointError, DataError, RanksError
from outsize.ranks.agreement import swap_headers
from outsize.ranks.failures import announce_failure, failing_in_group, failing_together
from outsize.ranks.thread_ranks import run_as_ranks

CPU = torch.device("cpu")


def raised_by(ranks, work):
    try:
        work(ranks)
    except Exception as error:
        return type(error), str(error)
    return None


def test_an_error_on_one_rank_of_a_group_is_raised_on_all():
    def work(ranks):
        with failing_in_group(ranks, CPU):
            if ranks.rank == 1:
                raise KeyError("lost")

    other = (DataError, "rank 1 could not take this step; nothing was kept: see its error")
    found = run_as_ranks(3, lambda ranks: raised_by(ranks, work))
    assert found == [other, (KeyError, "'lost'"), other]


def test_a_group_without_errors_goes_on():
    def work(ranks):
        with failing_in_group(ranks, CPU):
            pass
        return ranks.rank

    assert run_as_ranks(2, work) == [0, 1]


def test_a_rank_alone_raises_its_own_error():
    with pytest.raises(KeyError, match="lost"), failing_in_group(None, CPU):
        raise KeyError("lost")
    with pytest.raises(KeyError, match="lost"), failing_together(CheckpointError):
        raise KeyError("lost")


def test_an_announced_failure_is_raised_in_the_next_round():
    def work(ranks):
        if ranks.rank == 0:
            announce_failure(ranks)
        else:
            swap_headers(ranks, "a flush", "", [[0]] * 2)

    nothing, (kind, text) = run_as_ranks(2, lambda ranks: raised_by(ranks, work))
    assert (nothing, kind) == (None, RanksError)
    assert text.startswith("rank 0 failed before a flush")


@pytest.mark.parametrize("seconds", [0.005, 0.013])  # a swap takes about 0.01
def test_a_rank_that_is_killed_while_it_sends_pieces_is_missed_in_one_line(seconds):
    ranks = Ranks(2, [Path(__file__).with_name("check_lost_in_pieces.py"), str(seconds)])
    first, second = ranks.ranks
    _, errors = first.communicate(timeout=60)
    second.communicate(timeout=60)
    assert second.returncode == -signal.SIGKILL
    assert first.returncode == 3, errors
    lines = [line for line in errors.splitlines() if "lost" in line]
    assert len(lines) == 1
    assert lines[0].startswith("rank 0: lost the other ranks (")
