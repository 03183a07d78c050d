"""The Triton kernels for rows equal their reference: under the interpreter here, and on CUDA."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from draw_checks import no_waiting
from interpreted import needs_triton, run_interpreted
from row_checks import (
    RULES,
    SHAPES,
    assert_columns_are_read_in_place,
    assert_drawn,
    assert_gathers,
    assert_nothing_changes,
    assert_rounds,
    assert_sums,
    assert_trains,
)

import outsize
from outsize.errors import IdError, NonFiniteError

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPTIMIZERS = [outsize.RowSGD, outsize.RowAdagrad, outsize.RowFullAdagrad, outsize.RowAdam]
SPECS = [outsize.TableSpec("user", 4000, 16), outsize.TableSpec("item", 300, 16)]
BAGGED = outsize.FeatureSpec("clicked", table="item", pooling="mean")


@needs_triton
def test_the_kernels_mean_the_same_under_the_interpreter():
    run_interpreted(Path(__file__).with_name("check_fused_triton.py"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [*SHAPES, (200_000, 1, 128, 1), (300_000, 100_000, 128, 9), (100_000, 70_000, 300, 3),
     (50_000, 3000, 1025, 2), (4097, 4097, 64, 1), (200_000, 3_000_000_000, 7, 1)],
)  # fmt: skip
def test_sums_on_cuda_are_those_of_each_row(shape):
    assert_sums(*shape, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [5, 128, 1500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_look_ups_on_cuda_read_the_rows(dim, dtype):
    assert_gathers(dim, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rows_on_cuda_are_rounded_as_in_the_reference(dtype):
    assert_rounds(dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("bagged", "dim"), [("", 128), ("", 5), ("", 1100), ("sum", 16), ("scaled", 6)]
)
@pytest.mark.parametrize("rule", RULES)
def test_updates_on_cuda_are_those_of_the_reference(rule, bagged, dim):
    assert_trains(rule, torch.float32, bagged, "cuda", num=5000, num_rows=300, dim=dim)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_rows_of_half_precision_are_updated_on_cuda(rule, dtype):
    assert_trains(rule, dtype, "", "cuda", num=700, num_rows=300, dim=24)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(12))
def test_batches_drawn_at_random_are_trained_on_cuda_as_in_the_reference(seed):
    assert_drawn(seed, most=20_000, device="cuda")


@pytest.mark.gpu
def test_batches_without_ids_and_columns_of_any_spacing_are_read_on_cuda():
    assert_nothing_changes("cuda")
    assert_columns_are_read_in_place("cuda")


def batch(step, size=500, device="cuda"):
    draw = torch.Generator().manual_seed(step)
    user = (torch.rand(size, generator=draw) ** 4 * 4000).long()
    item = (torch.rand(size, generator=draw) * 300).long()
    clicked = (torch.rand(size, 3, generator=draw) ** 2 * 300).long()
    found = {"user": user, "item": item, "clicked": clicked}
    return {name: ids.to(device) for name, ids in found.items()}


def train(make, fused, device="cuda", bagged=False, num_steps=4, dtype=torch.float32):
    specs = [outsize.TableSpec(spec.name, spec.num_rows, 16, dtype=dtype) for spec in SPECS]
    store = outsize.LocalStore(specs, device=device)
    rows = make(store, learning_rate=0.1, fused=fused)
    names = [outsize.FeatureSpec("user"), outsize.FeatureSpec("item")]
    embeddings = outsize.EmbeddingCollection([*names, *([BAGGED] if bagged else [])], store)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(rows, 0.5)
    for step in range(num_steps):
        rows.zero_grad()
        vectors = embeddings(batch(step, device=device))
        sum(vector.pow(3).sum() for vector in vectors.values()).backward()
        rows.step()
        scheduler.step()
    rows.raise_if_non_finite()
    embeddings.raise_if_bad_ids()
    return {name: value.cpu() for name, value in store.state_dict().items()}


@pytest.mark.gpu
@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("bagged", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_training_on_cuda_is_that_on_the_cpu_and_repeats_itself(make, bagged, fused):
    ours, again = (train(make, fused, bagged=bagged) for _ in range(2))
    theirs = train(make, False, "cpu", bagged)
    for name, value in theirs.items():
        assert torch.equal(ours[name], again[name]), name
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_fused_step_on_cuda_does_not_synchronize_and_can_be_replayed():
    def made():
        store = outsize.LocalStore(SPECS, device="cuda")
        rows = outsize.RowAdagrad(store, learning_rate=0.1, fused=True)
        features = [outsize.FeatureSpec("user"), outsize.FeatureSpec("item")]
        return store, rows, outsize.EmbeddingCollection(features, store)

    def step(rows, embeddings, inputs):
        rows.zero_grad()
        embeddings.stacked(inputs).pow(3).sum().backward()
        rows.step()

    eager, replayed = made(), made()
    norms = []
    for number in range(5):
        eager[1].param_groups[0]["lr"] = 0.1 / (1 + number)
        inputs = batch(number)
        with no_waiting() if number else nullcontext():  # the first one compiles
            step(*eager[1:], inputs)
        norms.append(eager[0].fused.squared_norm.clone())
    held = batch(0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step(*replayed[1:], held)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step(*replayed[1:], held)
    for number in range(1, 5):
        for name, ids in batch(number).items():
            held[name].copy_(ids)
        replayed[1].param_groups[0]["lr"] = 0.1 / (1 + number)
        replayed[1].refresh_settings()
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(replayed[0].fused.squared_norm, norms[number])
    for name, value in eager[0].state_dict().items():
        assert torch.equal(value, replayed[0].state_dict()[name]), name


@pytest.mark.gpu
def test_flawed_updates_on_cuda_change_no_row_and_are_reported():
    store = outsize.LocalStore(SPECS[:1], device="cuda")
    rows = outsize.RowSGD(store, learning_rate=0.1, fused=True)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("user")], store)
    ids = torch.tensor([1, 2, 1], device="cuda")
    before = store.rows(0).clone()
    for scale in (float("inf"), 1.0):  # the second is refused, too
        embeddings.stacked({"user": ids}).sum().mul(scale).backward()
        rows.step()
    assert torch.equal(store.rows(0), before)
    with pytest.raises(NonFiniteError, match="that update and all since were not"):
        rows.raise_if_non_finite()
    rows.raise_if_non_finite()
    embeddings.stacked({"user": ids}).sum().backward()
    assert (store.rows(0) != before).any(dim=1).nonzero().flatten().tolist() == [1, 2]
    rows.step()
    embeddings.stacked({"user": ids * 4000})
    with pytest.raises(IdError, match="id 8000 is outside 0 … 3999"):
        embeddings.raise_if_bad_ids()
