import pytest
import torch

import outsize
from outsize.errors import ConfigError

SPEC = outsize.TableSpec("rows", num_rows=6, dim=3)


def train_rows(make, batches, **settings):
    """Rows after a sequence of (ids, gradients)."""
    store = outsize.LocalStore([SPEC])
    optimizer = make(store, learning_rate=0.1, **settings)
    collection = outsize.EmbeddingCollection([outsize.FeatureSpec("rows")], store)
    for ids, gradients in batches:
        (collection({"rows": ids})["rows"] * gradients).sum().backward()
        optimizer.step()
    return store.read(torch.arange(6))


def train_torch(make, batches, **settings):
    """The same, with a torch optimizer over an `nn.Embedding`."""
    weight = outsize.LocalStore([SPEC]).read(torch.arange(6))
    layer = torch.nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=True)
    optimizer = make(layer.parameters(), lr=0.1, **settings)
    with torch.sparse.check_sparse_tensor_invariants(enable=True):
        for ids, gradients in batches:
            optimizer.zero_grad()
            (layer(ids) * gradients).sum().backward()
            optimizer.step()
    return layer.weight.detach()


def some_batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(0, 6, (4,), generator=generator),
            torch.randn(4, 3, generator=generator),
        )
        for _ in range(count)
    ]


def test_row_sgd_equals_torch_sgd():
    batches = some_batches(10)
    ours, theirs = train_rows(outsize.RowSGD, batches), train_torch(torch.optim.SGD, batches)
    torch.testing.assert_close(ours, theirs)


def test_row_full_adagrad_equals_torch_adagrad():
    batches = some_batches(10)
    ours = train_rows(outsize.RowFullAdagrad, batches)
    torch.testing.assert_close(ours, train_torch(torch.optim.Adagrad, batches))


def test_row_adagrad_keeps_the_mean_square_of_each_row():
    ids, gradients = torch.tensor([2]), torch.tensor([[1.0, 2.0, 3.0]])
    start = outsize.LocalStore([SPEC]).read(torch.arange(6))
    rows = train_rows(outsize.RowAdagrad, [(ids, gradients), (ids, 2 * gradients)], eps=0.0)
    mean_square = 14.0 / 3.0
    moved = 0.1 * gradients[0] * (mean_square**-0.5 + 2 * (5 * mean_square) ** -0.5)
    torch.testing.assert_close(rows[2], start[2] - moved)


def test_row_adam_is_dense_adam_on_each_rows_own_updates():
    batches = some_batches(30)
    ours = train_rows(outsize.RowAdam, batches)
    start = outsize.LocalStore([SPEC]).read(torch.arange(6))
    for row in range(6):
        alone = torch.nn.Parameter(start[row].clone())
        optimizer = torch.optim.Adam([alone], lr=0.1)
        for ids, gradients in batches:
            if (ids == row).any():
                alone.grad = gradients[ids == row].sum(dim=0)
                optimizer.step()
        torch.testing.assert_close(ours[row], alone.detach())


def test_grad_scaler_unscales_rows():
    store = outsize.LocalStore([SPEC])
    optimizer = outsize.RowSGD(store, learning_rate=0.1)
    collection = outsize.EmbeddingCollection([outsize.FeatureSpec("rows")], store)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = store.read(torch.tensor([1]))
    scaler.scale(collection({"rows": torch.tensor([1])})["rows"].sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(store.read(torch.tensor([1])), before - 0.1)


def test_grad_scaler_skips_a_step_that_overflowed():
    store = outsize.LocalStore([SPEC])
    optimizer = outsize.RowSGD(store, learning_rate=0.1)
    collection = outsize.EmbeddingCollection([outsize.FeatureSpec("rows")], store)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = store.read(torch.tensor([1]))
    loss = collection({"rows": torch.tensor([1])})["rows"].sum() * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert torch.equal(store.read(torch.tensor([1])), before)
    assert scaler.get_scale() == 512.0


def test_rows_in_bfloat16_are_updated_in_float32():
    spec = outsize.TableSpec("rows", num_rows=6, dim=3, dtype=torch.bfloat16)
    store = outsize.LocalStore([spec])
    store_optimizer = outsize.RowSGD(store, learning_rate=1.0)
    before = store.read(torch.tensor([0])).float()
    store.add(torch.tensor([0]), torch.full((1, 3), 0.25))
    after = store.read(torch.tensor([0]))
    assert after.dtype == torch.bfloat16
    # One of the two bfloat16 numbers beside the float32 result: see `kernels.row_rounding`.
    assert ((after.float() - (before - 0.25)).abs() < 2.0**-8).all()
    assert store_optimizer.store is store


def test_a_store_needs_an_optimizer_before_updates():
    with pytest.raises(ConfigError, match="no optimizer yet"):
        outsize.LocalStore([SPEC]).add(torch.tensor([0]), torch.ones(1, 3))


def test_a_negative_learning_rate_is_refused():
    with pytest.raises(ConfigError, match="learning_rate must be >= 0"):
        outsize.RowSGD(outsize.LocalStore([SPEC]), learning_rate=-1.0)


def test_a_closure_is_evaluated_with_gradients():
    store = outsize.LocalStore([SPEC])
    optimizer = outsize.RowSGD(store, learning_rate=0.1)
    collection = outsize.EmbeddingCollection([outsize.FeatureSpec("rows")], store)

    def closure():
        loss = collection({"rows": torch.tensor([1])})["rows"].sum()
        loss.backward()
        return loss.item()

    before = store.read(torch.tensor([1]))
    assert optimizer.step(closure) == pytest.approx(before.sum().item())
    torch.testing.assert_close(store.read(torch.tensor([1])), before - 0.1)


@pytest.mark.parametrize("kind", outsize.ROW_OPTIMIZERS.values())
def test_the_rate_is_taken_by_the_name_torch_gives_it(kind):
    store = outsize.LocalStore([outsize.TableSpec("ad", 5, 2)])
    assert kind(store, lr=0.125).param_groups[0]["lr"] == 0.125
    with pytest.raises(ConfigError, match="the same setting"):
        kind(store, learning_rate=0.5, lr=0.125)


def backward_passes(embeddings, count):
    for _ in range(count):
        embeddings({"ad": torch.tensor([1, 2])})["ad"].sum().backward()


def test_rows_with_gradients_and_no_optimizer_are_a_warning():
    store = outsize.LocalStore([outsize.TableSpec("ad", 5, 2)])
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], store)
    with pytest.warns(UserWarning, match="no optimizer trains them: make one"):
        backward_passes(embeddings, 9)
    backward_passes(embeddings, 9)  # once is enough


def test_an_optimizer_that_never_steps_is_a_warning():
    store = outsize.LocalStore([outsize.TableSpec("ad", 5, 2)])
    rows = outsize.RowSGD(store)
    embeddings = outsize.EmbeddingCollection([outsize.FeatureSpec("ad")], store)
    backward_passes(embeddings, 20)
    rows.step()
    with pytest.warns(UserWarning, match=r"has not stepped: call its step\(\)"):
        backward_passes(embeddings, 1025)
