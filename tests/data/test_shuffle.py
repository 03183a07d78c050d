import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outsize.data.shuffle import BlockShuffle

sizes = st.integers(1, 200)


@given(sizes, st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_sees_every_row_once(num_rows, block_rows, window_blocks, epoch):
    shuffle = BlockShuffle(num_rows, 3, block_rows, window_blocks)
    assert sorted(shuffle.rows(0, num_rows, epoch).tolist()) == list(range(num_rows))


@given(sizes, st.data())
def test_any_part_of_an_epoch_is_that_part_of_the_whole(num_rows, data):
    first = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(first, num_rows))
    whole = BlockShuffle(num_rows, 3, 7, 2).rows(0, num_rows, 1)
    assert (
        BlockShuffle(num_rows, 3, 7, 2).rows(first, stop, 1).tolist() == whole[first:stop].tolist()
    )


def test_epochs_and_seeds_differ_and_each_can_be_repeated():
    orders = {
        (seed, epoch): tuple(BlockShuffle(100, seed, 8, 2).rows(0, 100, epoch).tolist())
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    one = BlockShuffle(100, 0, 8, 2)
    for epoch in (1, 0, 1):
        assert tuple(one.rows(0, 100, epoch).tolist()) == orders[0, epoch]


def test_the_rows_of_a_window_come_from_few_blocks():
    rows = BlockShuffle(1000, 0, 10, 5).rows(0, 50, 0)
    assert len(set((rows // 10).tolist())) == 5


@pytest.mark.parametrize("lag", [1, 2, 5])
def test_neighbours_on_disk_are_no_neighbours_in_training(lag):
    rows = BlockShuffle(100_000, 0).rows(0, 100_000, 0)
    assert abs(np.corrcoef(rows[:-lag] % 4096, rows[lag:] % 4096)[0, 1]) < 0.02
