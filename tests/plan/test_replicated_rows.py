"""The cost of replicated rows, and ranks that compute in turn."""

import threading

import torch

from outsize.plan.in_turn import InTurn
from outsize.plan.replicas import RowCost, replicas
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.training.store_config import StoreConfig

READS = [[[torch.tensor([0, 3, 7])], [torch.tensor([2, 3])]]] * 3


def test_every_rank_sends_its_gradients_to_all_others_padded_to_the_longest():
    found = replicas(StoreConfig(dim=4), READS)
    assert found.row_bytes == 3 * (4 * 4 + 8)
    assert found.row_rounds == 4
    assert found.rows_s > 0


def test_one_rank_sends_nothing():
    found = replicas(StoreConfig(dim=4), [[ranks[0]] for ranks in READS])
    assert (found.row_bytes, found.row_rounds) == (0.0, 0)


def test_more_ranks_send_and_add_up_in_proportion():
    assert RowCost(0.5, 30.0, 4, num_ranks=4).of_ranks(10) == RowCost(1.25, 90.0, 4, 10)


def test_a_sampled_share_of_the_rows_stands_for_all():
    whole, half = (replicas(StoreConfig(dim=4), READS, share).row_bytes for share in (1.0, 0.5))
    assert half == 2 * whole


def test_ranks_in_turn_swap_messages_and_never_compute_at_once():
    lock, computing = threading.Lock(), []

    def work(threads):
        ranks = InTurn(threads, lock)
        with ranks.turn():
            for _ in range(20):
                computing.append(ranks.rank)
                assert len(computing) == 1
                computing.remove(ranks.rank)
                received = ranks.swap_counts(torch.full((3, 1), ranks.rank))
            return received.flatten().tolist()

    assert run_as_ranks(3, work) == [[0, 1, 2]] * 3
    assert not lock.locked()
