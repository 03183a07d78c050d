"""The examples that the kernel makes are those of torch."""

from pathlib import Path

import pytest
import torch
from click_checks import USUAL, assert_examples_are_those_of_torch
from interpreted import needs_triton, run_interpreted


@needs_triton
def test_examples_are_those_of_torch_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_clicks_triton.py"))


def made_of(data, split, first, stop):
    return data.to(torch.device("cuda")).examples(split, first, stop)


@pytest.mark.gpu
def test_examples_are_those_of_torch_on_cuda():
    assert_examples_are_those_of_torch(made_of, count=100_000)


@pytest.mark.gpu
def test_torch_makes_them_on_cuda_where_kernels_are_not_to_be_used(monkeypatch):
    monkeypatch.setenv("OUTSIZE_KERNELS", "torch")
    monkeypatch.setattr("outsize.kernels.clicks.clicks_triton.make_clicks_kernel", None)
    assert_examples_are_those_of_torch(made_of, count=1_000)


@pytest.mark.gpu
def test_batches_made_several_at_once_are_the_same_on_cuda():
    data = USUAL.build().to(torch.device("cuda"))
    batches = data.batches("train", 1_000, start=3)
    whole = data.examples("train", 3_000, 8_000)
    for place, batch in zip(range(0, 5_000, 1_000), batches, strict=False):
        some = slice(place, place + 1_000)
        assert torch.equal(batch.labels, whole.labels[some])
        assert torch.equal(batch.dense, whole.dense[some])
        for name, ids in batch.ids.items():
            assert torch.equal(ids, whole.ids[name][some])
