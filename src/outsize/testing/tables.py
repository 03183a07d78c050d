"""Checks for tables."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
import torch.nn.functional as F

from outsize.contracts import EmbeddingTable
from outsize.errors import IdError
from outsize.spec import POOLINGS, TableSpec
from outsize.testing.checks import checks_in, refusal

MakeTable = Callable[..., EmbeddingTable]
_SPEC = TableSpec("contract", num_rows=97, dim=8)
_IDS = torch.tensor([[0, 1, 96], [5, 5, 0]])


def ids_of_any_shape_map_to_vectors(make: MakeTable) -> None:
    """`table(ids)` is `(*ids.shape, dim)`, and the shape does not change the values."""
    table = make(_SPEC)
    flat = table(_IDS.flatten())
    assert flat.shape == (6, 8)
    torch.testing.assert_close(table(_IDS), flat.view(2, 3, 8))
    torch.testing.assert_close(table(torch.tensor(5)), flat[3])
    assert table(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 8)


def equal_ids_have_equal_vectors(make: MakeTable) -> None:
    """A vector depends on its id only, up to the rounding of a matrix product."""
    vectors = make(_SPEC)(_IDS)
    torch.testing.assert_close(vectors[1, 0], vectors[1, 1])
    torch.testing.assert_close(vectors[0, 0], vectors[1, 2])


def the_seed_decides_the_table(make: MakeTable) -> None:
    """The same seed gives the same table; another seed gives another table."""
    one, same, other = (make(_SPEC, seed=seed)(_IDS) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def initial_vectors_have_the_requested_scale(make: MakeTable) -> None:
    """All methods start at the same scale, so that comparisons are fair."""
    spec = TableSpec("contract", num_rows=4096, dim=16)
    with torch.no_grad():
        vectors = make(spec)(torch.arange(spec.num_rows))
    wanted = spec.init.std_for(spec.dim)
    assert 0.8 * wanted < float(vectors.std()) < 1.25 * wanted


def bags_pool_as_torch_does(make: MakeTable) -> None:
    """`bag` equals `F.embedding_bag` over the materialised table."""
    table = make(_SPEC)
    values, offsets = torch.tensor([3, 4, 4, 90, 0]), torch.tensor([0, 2, 2, 4])
    for pooling in POOLINGS:
        weight = table.materialize().weight.detach()
        expected = F.embedding_bag(values, weight, offsets, mode=pooling)
        torch.testing.assert_close(table.bag(values, offsets, pooling=pooling), expected)
    weights = torch.tensor([0.5, -1.0, 2.0, 1.0, 3.0])
    weight = table.materialize().weight.detach()
    expected = F.embedding_bag(values, weight, offsets, mode="sum", per_sample_weights=weights)
    torch.testing.assert_close(table.bag(values, offsets, weights), expected)
    torch.testing.assert_close(table.bag(_IDS, pooling="mean"), table(_IDS).mean(dim=1))


def padding_is_left_out_of_bags(make: MakeTable) -> None:
    """A padding id adds nothing, does not count in a mean, and may be out of range."""
    table = make(_SPEC)
    padded = torch.tensor([[3, -1, 4], [-1, -1, -1]])
    pooled = table.bag(padded, pooling="mean", padding_id=-1)
    torch.testing.assert_close(pooled[0], table(torch.tensor([3, 4])).mean(dim=0))
    assert not pooled[1].any()


def ids_out_of_range_are_refused(make: MakeTable) -> None:
    """An id out of range raises an error that names the table and the id."""
    table = make(_SPEC)
    for bad in (97, -1, 2**40):
        message = refusal(IdError, lambda bad=bad: table(torch.tensor([0, bad])))  # type: ignore[misc]
        assert "contract" in message
        assert str(bad) in message


def parameters_learn(make: MakeTable) -> None:
    """Gradient descent moves the vectors of a few ids to their targets."""
    table = make(_SPEC)
    ids, target = torch.tensor([2, 50]), torch.ones(2, 8)
    optimizer = torch.optim.Adam(table.parameters(), lr=0.05)
    before = F.mse_loss(table(ids), target).item()
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(table(ids), target).backward()
        optimizer.step()
    assert F.mse_loss(table(ids), target).item() < before / 100


def state_dict_restores_the_vectors(make: MakeTable) -> None:
    """Loading into a table with another seed restores the saved vectors exactly."""
    saved, other = make(_SPEC, seed=1), make(_SPEC, seed=2)
    other.load_state_dict(saved.state_dict())
    assert torch.equal(saved(_IDS), other(_IDS))


def a_meta_table_works_once_it_is_loaded(make: MakeTable) -> None:
    """Built on the meta device or moved there, a table equals the saved one after loading."""
    saved = make(_SPEC, seed=1)
    state = saved.state_dict()
    for build in (_made_on_meta, lambda make: make(_SPEC, seed=2).to("meta")):
        for assign in (True, False):
            table = build(make)
            assert all(tensor.is_meta for tensor in _tensors(table)), "a tensor has values"
            assert table(_IDS.to("meta")).shape == (2, 3, 8)
            if not assign:
                table.to_empty(device="cpu")
            table.load_state_dict(state, assign=assign)
            assert torch.equal(table(_IDS), saved(_IDS))
            assert "contract" in refusal(IdError, lambda table=table: table(_IDS + 1))  # type: ignore[misc]


def settings_build_a_table_of_the_same_shape(make: MakeTable) -> None:
    """What `settings` returns builds a table that the state fits, or the method has none."""
    saved = make(_SPEC, seed=1)
    settings = saved.settings()
    if settings is None:
        return
    assert json.loads(json.dumps(settings)) == settings, "settings are plain values"
    with torch.device("meta"):
        built = type(saved).from_settings(_SPEC, settings)
    built.load_state_dict(saved.state_dict(), assign=True)
    assert torch.equal(built(_IDS), saved(_IDS))
    assert built.settings() == settings


def _made_on_meta(make: MakeTable) -> EmbeddingTable:
    with torch.device("meta"):
        return make(_SPEC, seed=2)


def _tensors(table: EmbeddingTable) -> list[torch.Tensor]:
    return [*table.parameters(), *table.buffers()]


def a_move_that_fails_changes_nothing(make: MakeTable) -> None:
    """If moving any one tensor fails, as on a full device, all tensors are unchanged."""
    table = make(_SPEC)
    table(_IDS).sum().backward()
    before, expected = [(t, t.dtype, t.grad) for t in _tensors(table)], table(_IDS).detach()
    num_tensors = sum(1 if grad is None else 2 for *_, grad in before)
    for failing in range(num_tensors):
        moved: list[torch.Tensor] = []

        def move(tensor: torch.Tensor, moved: list[torch.Tensor] = moved) -> torch.Tensor:
            if len(moved) == failing:  # noqa: B023
                raise MemoryError("the device is full")
            moved.append(tensor)
            return tensor.double() if tensor.is_floating_point() else tensor.clone()

        refusal(MemoryError, lambda move=move: table._apply(move))  # type: ignore[misc]
        now = [(t, t.dtype, t.grad) for t in _tensors(table)]
        for old, new in zip(before, now, strict=True):
            assert all(a is b for a, b in zip(old, new, strict=True))
        assert torch.equal(table(_IDS), expected)


def dtype_moves_are_followed(make: MakeTable) -> None:
    """`.to(torch.float64)` computes in float64 and keeps the vectors."""
    table = make(_SPEC)
    before = table(_IDS)
    after = table.to(torch.float64)(_IDS)
    assert after.dtype == torch.float64
    torch.testing.assert_close(after.float(), before)


def memory_use_is_what_the_module_holds(make: MakeTable) -> None:
    """Parameters and bytes equal those of the module's tensors."""
    table = make(_SPEC)
    use = table.memory_use()
    tensors = [*table.parameters(), *table.buffers()]
    assert use.num_parameters == sum(p.numel() for p in table.parameters())
    assert use.total_bytes == sum(t.numel() * t.element_size() for t in tensors)


def materialize_gives_the_same_vectors(make: MakeTable) -> None:
    """The exported `nn.Embedding` looks up the same vectors."""
    table = make(_SPEC)
    embedding = table.materialize()
    assert embedding.weight.shape == (97, 8)
    torch.testing.assert_close(embedding(_IDS), table(_IDS))
    assert embedding.weight.requires_grad


def forward_compiles_in_one_graph(make: MakeTable) -> None:
    """`torch.compile` compiles a look-up without a graph break, with the same result."""
    torch.compiler.reset()  # graphs of earlier checks count towards a limit
    table = make(_SPEC)
    compiled = torch.compile(table, backend="eager", fullgraph=True)
    assert torch.equal(compiled(_IDS), table(_IDS))


def lookup_compiles_and_refuses_ids_out_of_range(make: MakeTable) -> None:
    """A compiled graph includes the check of ids, with the same error."""
    for backend in ("eager", "aot_eager"):
        torch.compiler.reset()
        table = make(_SPEC)
        compiled = torch.compile(table, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(_IDS), table(_IDS))
        for bad in (97, -1, 2**40):
            message = refusal(
                IdError,
                lambda bad=bad, compiled=compiled: compiled(torch.tensor([[0, bad, 1]] * 2)),  # type: ignore[misc]
            )
            assert "contract" in message
            assert str(bad) in message


TABLE_CHECKS: tuple[Callable[[MakeTable], None], ...] = checks_in(globals())
