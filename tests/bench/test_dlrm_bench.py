"""The tables of `outsize bench dlrm`."""

import pytest
import torch

from outsize.bench import dlrm
from outsize.bench.plain_dlrm import PlainSteps
from outsize.data import SyntheticConfig


def timing(seconds):
    return {"median_s": seconds, "p10_s": seconds * 0.9, "p90_s": seconds * 1.1, "rounds": 3}


def results(**more):
    row = {"batch_size": 2048, "optimizer": "sgd", "speed_up": 4.0, **more}
    times = {"plain": 0.004, "compiled": 0.003, "eager": 0.002, "outsize": 0.001}
    loop = {name: timing(s) for name, s in (("loop", 0.0011), ("bare", 0.001), ("data", 0.0002))}
    return {
        "speed": [{**row, **{name: timing(s) for name, s in times.items()}}],
        "loop": [{"batch_size": 2048, "share": 1 - 1 / 1.1, **loop}],
    }


def test_on_a_gpu_every_variant_and_its_memory_are_shown():
    names = ["plain", "compiled", "eager", "outsize"]
    peaks = dict(zip(names, (4e8, 3e8, 2e8, 1e8), strict=True))
    page = dlrm.table(results(variants=names, peak_bytes=peaks))
    assert "| plain PyTorch | compiled plain PyTorch | Outsize without a graph | Outsize |" in page
    assert "| speed-up | over compiled |" in page
    assert "| 4.00× | 3.00× |" in page
    assert "| 2,048 | sgd | 400 | 300 | 200 | 100 |" in page
    assert "| 9.1% |" in page


def test_steps_of_compressed_tables_are_shown_captured_and_not():
    row = {"batch_size": 2048, "eager": timing(0.008), "outsize": timing(0.001)}
    page = dlrm.table({**results(), "tables": [row]})
    assert "CCE tables of at most 16,384 parameters" in page
    assert "8.00× |" in page
    assert "CCE tables" not in dlrm.table(results())


def test_results_without_variants_have_the_two_of_the_cpu():
    page = dlrm.table(results())
    assert "| batch | optimizer | plain PyTorch | Outsize | speed-up |" in page
    assert "Peak memory" not in page


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_a_plain_step_trains_its_model(kind):
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; Adagrad warns otherwise
    data = SyntheticConfig(num_train=64, num_validation=1, num_test=1, vocabulary=(5, 9)).build()
    batches = list(data.batches("train", 16))
    steps = PlainSteps(data, kind, batches, torch.device("cpu"))
    made = []
    steps_of, steps._steps = steps._steps, lambda model: made.append(model) or steps_of(model)
    step = steps.eager()
    before = [weight.clone() for weight in made[0].parameters()]
    step()
    after = made[0].parameters()
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
