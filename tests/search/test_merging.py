"""An index grows without rewriting everything."""

import math

import torch

from outsize.search import ItemIndex


def test_a_row_is_rewritten_a_logarithmic_number_of_times(tmp_path):
    written = 0
    with ItemIndex.create(tmp_path / "index", 2) as index:
        for turn in range(81):
            before = {segment.name for segment in index.state.segments}
            index.write([f"{turn} {i}" for i in range(3)], torch.ones(3, 2), "v1")
            segments = index.state.segments
            written += sum(len(s.rows) for s in segments if s.name not in before)
            assert len(segments) <= math.log(len(index), 3) + 1
        assert index.keys() == [f"{turn} {i}" for turn in range(81) for i in range(3)]
        assert written < 3 * 81 * 2 * math.log2(81)  # all of it each time would be 41 per row


def test_dead_rows_do_not_pile_up(tmp_path):
    with ItemIndex.create(tmp_path / "index", 2) as index:
        keys = [str(i) for i in range(40)]
        for turn in range(12):
            index.write(keys, torch.full((40, 2), float(turn)), "v1")
            assert sum(len(segment.rows) for segment in index.state.segments) <= 80
        index.delete(keys[:39])
        assert sum(len(segment.rows) for segment in index.state.segments) == 1
        index.delete(keys[39:])
        assert len(index.state.segments) == 0
        index.write(["a"], torch.ones(1, 2), "v2")
    assert ItemIndex.open(tmp_path / "index").keys() == ["a"]
