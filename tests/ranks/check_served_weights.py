"""Run by torchrun: dense weights that all ranks serve and train without waiting."""

import os

import torch
from torch.nn.utils import parameters_to_vector

from outsize.ranks.collectives import gather_rows, process_group, rank, world_size
from outsize.training.served_weights import ServedWeights


def equal_on_all_ranks(model):
    everyone = gather_rows(parameters_to_vector(model.parameters()).detach())
    return all(torch.equal(everyone[0], other) for other in everyone)


with process_group(torch.device("cpu")):
    torch.manual_seed(rank())  # the first rank's weights are everyone's
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 3))
    weights = ServedWeights(list(model.parameters()), "adagrad", learning_rate=0.1)
    with weights.store:
        assert equal_on_all_ranks(model)
        before = parameters_to_vector(model.parameters()).detach()
        for _ in range(5 * (1 + rank())):
            weights.zero_grad()
            model(torch.ones(2, 30)).sum().backward()
            weights.step()
        weights.flush()
        assert equal_on_all_ranks(model)
        after = parameters_to_vector(model.parameters()).detach()
        assert (after != before).all()
        # A fresh optimizer with this state and these weights goes on as this one does.
        state = weights.state_dict()
        other = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 3))
        others = ServedWeights(list(other.parameters()), "adagrad", learning_rate=0.5)
        with others.store:
            other.load_state_dict(model.state_dict())
            others.load_state_dict(state)
            for optimizer, each in ((weights, model), (others, other)):
                optimizer.zero_grad()
                if rank() == 0:
                    each(torch.ones(2, 30)).sum().backward()
                    optimizer.step()
                optimizer.flush()
                assert equal_on_all_ranks(each)
            assert torch.equal(*(parameters_to_vector(m.parameters()) for m in (model, other)))
            assert not torch.equal(parameters_to_vector(model.parameters()), after)
    print(f"rank {rank()} of {world_size()} has passed", flush=True)
os._exit(0)
