"""States of generators that were saved on machines with other GPUs."""

import pytest
import torch

from outsize.training import random_state
from outsize.training.random_state import load_own_generators, load_random_state


@pytest.mark.gpu
def test_states_of_more_gpus_than_there_are_load():
    state = random_state.random_state()
    drawn = torch.rand(3, device="cuda")
    load_random_state({**state, "cuda": [*state["cuda"], state["cuda"][0]]})
    assert torch.equal(torch.rand(3, device="cuda"), drawn)


def test_states_of_many_gpus_are_loaded_by_their_number(monkeypatch):
    loaded = []
    monkeypatch.setattr(random_state, "load_random_state", loaded.append)
    saved = {f"random.cuda.{i}": torch.tensor(i) for i in range(12)}
    tensors = {**saved, "rows": torch.zeros(2), "random.cpu": torch.tensor(-1)}
    load_own_generators(tensors)
    assert tensors.keys() == {"rows"}
    assert loaded[0]["cuda"] == list(range(12))
    assert loaded[0]["cpu"] == -1
