"""An optimizer treats rewritten rows as one that was just made would."""

import copy
import inspect

import pytest
import torch
from torch import nn

from outsize.errors import ConfigError, DataError
from outsize.spec import TableSpec
from outsize.tables import CCETable
from outsize.tables.moments import RESETTABLE, reset_moments

SPEC = TableSpec("ad", num_rows=300, dim=8)
CASES = [
    ("Adadelta", {}),
    ("Adadelta", {"capturable": True, "foreach": False}),
    ("Adafactor", {}),
    ("Adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    ("Adagrad", {"fused": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "foreach": True}),
    ("Adam", {"fused": True}),
    ("Adam", {"capturable": True, "foreach": False}),
    ("AdamW", {"amsgrad": True}),
    ("AdamW", {"fused": True}),
    ("Adamax", {}),
    ("Adamax", {"capturable": True, "foreach": False}),
    ("ASGD", {"t0": 2, "lambd": 0.1}),
    ("ASGD", {"capturable": True, "foreach": False, "lambd": 0.1}),
    ("Muon", {"momentum": 0.5}),
    ("NAdam", {}),
    ("NAdam", {"capturable": True, "foreach": False}),
    ("RAdam", {}),
    ("RAdam", {"capturable": True, "foreach": False}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("RMSprop", {"capturable": True, "foreach": False}),
    ("Rprop", {}),
    ("Rprop", {"capturable": True, "foreach": False}),
    ("SGD", {"momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {}),
    ("SparseAdam", {}),
]


def make(name, options, parameters):
    if not hasattr(torch.optim, name):
        pytest.skip(f"this torch has no {name}")
    options = dict(options)
    if options.get("capturable") and not torch.cuda.is_available():
        del options["capturable"]  # its tensors are asked for below, by the group
    return getattr(torch.optim, name)(parameters, lr=0.05, **options)


def gradient(step, sparse):
    generator = torch.Generator().manual_seed(step)
    dense = torch.randn(6, 4, generator=generator)
    return dense.to_sparse(1) if sparse else dense


def trained(optimizer, parameters, steps):
    """Take steps of gradients that depend on their number alone."""
    sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for step in steps:
        for parameter in parameters:
            parameter.grad = gradient(step, sparse)
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_rows_that_are_rewritten_are_trained_as_by_a_new_optimizer(name, options):
    rewritten, other, alone = (nn.Parameter(torch.ones(6, 4)) for _ in range(3))
    optimizer = make(name, options, [rewritten, other])
    unhindered = make(name, options, [alone])
    trained(optimizer, [rewritten, other], range(4))
    trained(unhindered, [alone], range(4))
    with torch.no_grad():
        rewritten.copy_(torch.full((6, 4), 0.5))
    if options.get("capturable"):  # the state is kept where it is, and filled
        optimizer.param_groups[0]["capturable"] = True
        places = {k: v.data_ptr() for k, v in optimizer.state[rewritten].items()}
        reset_moments(optimizer, rewritten)
        assert {k: v.data_ptr() for k, v in optimizer.state[rewritten].items()} == places
        optimizer.param_groups[0]["capturable"] = False
    else:
        reset_moments(optimizer, rewritten)
    copied = nn.Parameter(rewritten.detach().clone())
    fresh = make(name, options, [copied])
    steps = range(10, 15)
    found, others = trained(optimizer, [rewritten, other], steps)
    assert torch.equal(found, trained(fresh, [copied], steps)[0])
    assert torch.equal(others, trained(unhindered, [alone], steps)[0])  # others' moments stay


def test_every_optimizer_of_torch_forgets_or_is_refused():
    kinds = {
        kind
        for _, kind in inspect.getmembers(torch.optim, inspect.isclass)
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    assert kinds - set(RESETTABLE) == {torch.optim.LBFGS}
    assert {kind.__name__ for kind in RESETTABLE} <= {name for name, _ in CASES}


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, Lion])
def test_an_optimizer_that_cannot_forget_is_refused_before_anything_changes(kind):
    table = CCETable(SPEC, num_buckets=16)
    optimizer = kind(table.parameters())
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(
        ConfigError, match=rf"'ad'.*cannot reset the state of {kind.__name__}:.*AdamW"
    ):
        table.recluster(optimizer)
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


def test_a_fused_sgd_with_dampening_is_refused_before_anything_changes():
    table = CCETable(SPEC, num_buckets=16)
    options = {"momentum": 0.9, "dampening": 0.5, "fused": True}
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(ConfigError, match=r"'ad'.*fused SGD with dampening.*set fused=False"):
        table.recluster(torch.optim.SGD(table.parameters(), lr=0.1, **options))
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


def test_an_optimizer_of_other_parameters_is_refused_before_anything_changes():
    table = CCETable(SPEC, num_buckets=16)
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(DataError, match=r"'ad'.*does not train this table"):
        table.recluster(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    assert all(torch.equal(before[name], value) for name, value in table.state_dict().items())


def test_a_subclass_forgets_as_its_kind_does():
    class Mine(torch.optim.NAdam):
        pass

    table = CCETable(SPEC, num_buckets=16)
    optimizer = Mine(table.parameters(), lr=0.1)
    table(torch.arange(9)).sum().backward()
    optimizer.step()
    table.recluster(optimizer)
    assert not optimizer.state.get(table.weight)


def test_moments_that_were_forgotten_are_saved_and_loaded_as_such():
    table = CCETable(SPEC, num_buckets=16)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.1)
    table(torch.arange(9)).sum().backward()
    optimizer.step()
    table.recluster(optimizer)
    again = torch.optim.Adam(table.parameters(), lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    table(torch.arange(9)).sum().backward()
    twin = copy.deepcopy(table)
    twin.weight.grad = table.weight.grad.clone()
    optimizer.step()
    expected = table.weight.detach().clone()
    with torch.no_grad():
        table.weight.copy_(twin.weight)
    again.step()
    assert torch.equal(table.weight, expected)
