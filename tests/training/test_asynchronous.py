"""Training in which no rank waits for another: `embeddings.store = "served"`."""

import json
from pathlib import Path

import pytest
import torch
from processes import run_ranks

import outsize
from outsize.errors import ConfigError
from outsize.training.config import RunConfig
from outsize.training.run_folder import RunFolder
from outsize.training.served_weights import ServedWeights
from outsize.training.strict_toml import decode, encode, override, to_toml

BASE = {
    "data": {
        "num_train": 6_000, "num_validation": 2_000, "num_test": 500, "num_dense": 3,
        "num_categorical": 4, "largest_vocabulary": 200,
    },
    "model": {"bottom": [8], "top": [8]},
    "embeddings": {"dim": 4, "store": "served"},
    "optimizer": {"kind": "adagrad", "learning_rate": 0.05},
    "train": {"batch_size": 32, "epochs": 2, "validate_every": 60, "log_every": 20,
              "early_stop": False},
    "checkpoint": {"every": 50},
}  # fmt: skip


def make_config(*settings):
    return decode(RunConfig, override(BASE, settings), "test")


def printed_by(num_ranks, *words):
    code, output, errors = run_ranks(num_ranks, *words)
    assert code == 0, errors
    return output


@pytest.mark.slow
def test_three_ranks_serve_dense_weights():
    script = Path(__file__).parent.parent / "ranks" / "check_served_weights.py"
    assert printed_by(3, script).count("has passed") == 3


def test_two_ranks_train_and_end(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(to_toml(encode(make_config())))
    output = printed_by(2, "-m", "outsize", "train", path, "--out", tmp_path / "run", "--json")
    result = json.loads(output)
    assert (result["stopped"], result["steps"]) == ("finished", 188)
    assert result["validation"]["auc"] > 0.6
    lines = RunFolder(tmp_path / "run").metrics()
    losses = [line["loss"] for line in lines if line["split"] == "train"]
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_one_process_trains_as_with_a_local_store(tmp_path, kind):
    settings = (f"optimizer.kind={kind}", "train.steps=40")
    curves = []
    for store in ("served", "local"):
        outsize.train(make_config(*settings, f"embeddings.store={store}"), tmp_path / store)
        lines = [line for line in RunFolder(tmp_path / store).metrics() if line["split"] != "rows"]
        curves.append([(line["step"], line["split"], line["loss"]) for line in lines])
    for served, local in zip(*curves, strict=True):
        assert served[:2] == local[:2]
        assert served[2] == pytest.approx(local[2], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "torchs"), [("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad)]
)
def test_served_weights_are_trained_as_torch_trains_them(kind, torchs):
    models = [torch.nn.Sequential(torch.nn.Linear(40, 7), torch.nn.Linear(7, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    served = ServedWeights(list(models[0].parameters()), kind, learning_rate=0.1)
    optimizers = [served, torchs(models[1].parameters(), lr=0.1)]
    inputs = torch.randn(6, 40)
    for step in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)  # as a schedule does
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    served.pull()
    for found, expected in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_step_changes_weights_where_they_live_and_here_with_the_next_pull():
    model = torch.nn.Linear(3, 2)
    served = ServedWeights(list(model.parameters()), "sgd", learning_rate=0.1)
    before = model.weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    served.step()
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    served.zero_grad()
    torch.testing.assert_close(model.weight.detach(), before - 0.1)


def test_other_optimizers_are_refused_in_words():
    with pytest.raises(ConfigError, match=r"sgd and adagrad.*'adamw'"):
        make_config("optimizer.kind=adamw")
    with pytest.raises(ConfigError, match="momentum"):
        make_config("optimizer.kind=sgd", "optimizer.momentum=0.9")
    with pytest.raises(ConfigError, match="sgd and adagrad"):
        ServedWeights([torch.nn.Parameter(torch.ones(1))], "adamw", 0.1)
