"""What is written on the wire is what is read from it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.contracts import RowLayout, RowReply, RowUpdate
from outsize.contracts.messages import take_lines
from outsize.errors import ConfigError
from outsize.kernels.rows.updates import AdagradRule, SGDRule
from outsize.ranks.sections import MessageReader, MessageWriter
from outsize.spec import TableSpec
from outsize.stores.merging import average_over_workers, empty_update, merge_updates
from outsize.stores.packing import Packing, RowRequest
from outsize.stores.wire import WIRES, wire_named

LAYOUT = RowLayout([TableSpec("wide", 40, 5), TableSpec("thin", 20, 1), TableSpec("other", 9, 3)])


def draw_update(seed, ids, ticks=None, exact=None):
    generator = torch.Generator().manual_seed(seed)
    sizes = LAYOUT.group_sizes(ids)
    gradients = tuple(
        torch.randn(size, group.dim, generator=generator)
        for size, group in zip(sizes, LAYOUT.groups, strict=True)
    )
    ticks = torch.ones_like(ids) if ticks is None else ticks
    return RowUpdate(ids, gradients, ticks, tuple(g.square() * 3 for g in gradients), exact)


@pytest.mark.parametrize(
    ("name", "share"), [("float32", 0), ("bfloat16", 1 / 256), ("int8", 1 / 254)]
)
def test_a_wire_rounds_no_more_than_it_says(name, share):
    wire = wire_named(name)
    vectors = torch.randn(50, 7) * torch.logspace(-6, 6, 50).unsqueeze(1)
    vectors[3] = 0.0
    content = wire.encode(vectors)
    assert content.shape == (50, wire.bytes_per_row(7))
    error = (wire.decode(content, 7) - vectors).abs()
    largest = vectors.abs() if name == "bfloat16" else vectors.abs().amax(dim=1, keepdim=True)
    assert (error <= share * largest * 1.0001).all()
    assert torch.equal(wire.rounded(vectors), wire.decode(content, 7))
    # Half of 1/32,767, and float32's own rounding of numbers up to 32,767 on top: below 1/65,000.
    finer = (wire.finer.rounded(vectors) - vectors).abs()
    assert (finer <= vectors.abs().amax(dim=1, keepdim=True) / 65_000).all()
    assert wire.encode(vectors[:0]).shape == (0, wire.bytes_per_row(7))


def test_an_unknown_wire_is_refused():
    with pytest.raises(ConfigError, match="float32, bfloat16, int8"):
        wire_named("float16")


@given(st.sets(st.integers(0, 22)), st.sets(st.integers(0, 22)), st.booleans(), st.integers(0, 99))
def test_a_request_arrives_as_it_was(pushed, asked, has_clocks, seed):
    owner, num_owners = 1, 3
    ids = torch.tensor(sorted(pushed), dtype=torch.int64) * num_owners + owner
    generator = torch.Generator().manual_seed(seed)
    ticks = torch.randint(0, 4, ids.shape, generator=generator)
    exact = torch.rand(ids.shape, generator=generator) < 0.3
    update = draw_update(seed, ids, ticks, exact)
    question = torch.tensor(sorted(asked), dtype=torch.int64) * num_owners + owner
    clocks = question * 1000 - 1 if has_clocks else None
    packing = Packing(LAYOUT, num_owners)
    rule, wire = AdagradRule(0.1), WIRES["float32"]
    message, numbers = packing.write_request(RowRequest(update, question, clocks), wire, rule)
    assert sum(message.bytes_by_kind.values()) == message.content.shape[0]
    found = packing.read_request(message.content, numbers, owner, has_clocks, wire, rule)
    assert torch.equal(found.ids, question)
    assert (found.clocks is None) == (clocks is None)
    assert clocks is None or torch.equal(found.clocks, clocks)
    assert torch.equal(found.update.ids, ids)
    assert torch.equal(found.update.ticks, ticks)
    squares = found.update.squares
    flags = (ticks > 1).split(LAYOUT.group_sizes(ids))
    for group, (gradient, flag) in enumerate(zip(found.update.gradients, flags, strict=True)):
        assert torch.equal(gradient, update.gradients[group])
        assert torch.equal(squares[group][flag], update.squares[group][flag])


def test_ids_beyond_32_bits_arrive_whole():
    layout = RowLayout([TableSpec("huge", 1 << 40, 2)])
    ids = torch.tensor([5, (1 << 33) + 5, (1 << 40) - 3]) // 3 * 3 + 1
    packing = Packing(layout, 3)
    nothing = empty_update(layout, torch.device("cpu"))
    rule = SGDRule(0.1)
    message, numbers = packing.write_request(RowRequest(nothing, ids, None), WIRES["int8"], rule)
    found = packing.read_request(message.content, numbers, 1, False, WIRES["int8"], rule)
    assert torch.equal(found.ids, ids)


@given(st.lists(st.booleans(), max_size=40), st.none() | st.integers(-1_000_000, 0))
def test_flags_take_a_bit_each(flags, behind):
    packing = Packing(LAYOUT, 1)
    stale = torch.tensor(flags, dtype=torch.bool)
    writer = MessageWriter()
    none = torch.empty(0, dtype=torch.int64)
    packing.put_flags(writer, RowReply(stale, (), none, (), behind))
    content = writer.message(torch.device("cpu")).content
    assert content.shape[0] == packing.num_flag_bytes(len(flags))
    found, worst = packing.take_flags(MessageReader(content), len(flags))
    assert torch.equal(found, stale)
    assert worst == behind


def test_updates_add_up_in_the_order_given():
    first = draw_update(1, torch.tensor([1, 5, 41]))
    second = draw_update(2, torch.tensor([5, 62]), torch.tensor([2, 3]))
    merged = merge_updates([first, second], LAYOUT, AdagradRule(0.1))
    assert merged.ids.tolist() == [1, 5, 41, 62]
    assert merged.ticks.tolist() == [1, 3, 1, 3]
    assert torch.equal(merged.gradients[0][1], first.gradients[0][1] + second.gradients[0][0])
    assert torch.equal(merged.squares[0][1], first.squares[0][1] + second.squares[0][0])


def test_batches_of_one_round_are_squared_together_and_sums_over_batches_apart():
    rule = AdagradRule(0.1)
    single = RowUpdate(torch.tensor([1]), (torch.ones(1, 5), torch.ones(0, 1), torch.ones(0, 3)),
                       torch.tensor([1]))  # fmt: skip
    averaged = average_over_workers([single, single], 2, LAYOUT, rule)
    assert averaged.squares is None  # the rule squares the mean itself
    several = RowUpdate(single.ids, single.gradients, torch.tensor([4]),
                        tuple(g * 8 for g in single.gradients))  # fmt: skip
    averaged = average_over_workers([single, several], 2, LAYOUT, rule)
    assert torch.equal(averaged.gradients[0], torch.ones(1, 5))
    assert torch.equal(averaged.squares[0], torch.full((1, 5), (1 + 8) / 4))
    assert averaged.ticks.tolist() == [5]


def test_lines_are_taken_through_all_groups():
    groups = tuple(torch.arange(n * d).view(n, d).float() for n, d in ((3, 2), (0, 4), (2, 1)))
    taken = take_lines(groups, torch.tensor([0, 2, 4]))
    assert [part.shape for part in taken] == [(2, 2), (0, 4), (1, 1)]
    assert torch.equal(taken[0], groups[0][[0, 2]])
    assert torch.equal(taken[2], groups[2][[1]])
