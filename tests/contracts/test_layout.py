import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.contracts import RowLayout
from outsize.errors import ConfigError
from outsize.spec import TableSpec

MIXED = [
    TableSpec("user", 10, 8),
    TableSpec("word", 5, 4),
    TableSpec("item", 20, 8),
    TableSpec("city", 3, 8, dtype=torch.bfloat16),
    TableSpec("tag", 2, 4),
]

specs = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from([2, 4]), st.sampled_from([torch.float32, torch.bfloat16])
    ),
    min_size=1,
    max_size=7,
).map(lambda kinds: [TableSpec(f"t{i}", n, dim, dtype=d) for i, (n, dim, d) in enumerate(kinds)])


def test_tables_of_one_kind_follow_each_other():
    layout = RowLayout([TableSpec("user", 10, 8), TableSpec("item", 20, 8)])
    assert layout.offsets == {"user": 0, "item": 10}
    assert layout.num_rows == 30
    assert [(group.dim, group.start, group.stop) for group in layout.groups] == [(8, 0, 30)]


def test_tables_of_equal_width_and_type_become_neighbours():
    layout = RowLayout(MIXED)
    assert [spec.name for spec in layout.specs] == ["user", "item", "word", "tag", "city"]
    assert layout.offsets == {"user": 0, "item": 10, "word": 30, "tag": 35, "city": 37}
    groups = [(group.dim, group.dtype, group.start, group.stop) for group in layout.groups]
    assert groups == [
        (8, torch.float32, 0, 30),
        (4, torch.float32, 30, 37),
        (8, torch.bfloat16, 37, 40),
    ]
    assert [group.num_rows for group in layout.groups] == [30, 7, 3]
    assert layout.num_rows == 40


def test_each_table_belongs_to_the_group_of_its_kind():
    layout = RowLayout(MIXED)
    found = {spec.name: layout.group_of(spec.name) for spec in MIXED}
    assert found == {"user": 0, "item": 0, "word": 1, "tag": 1, "city": 2}


@given(specs)
def test_every_row_of_every_table_has_one_store_id(tables):
    layout = RowLayout(tables)
    owned = [
        layout.offsets[spec.name] + row for spec in layout.specs for row in range(spec.num_rows)
    ]
    assert owned == list(range(layout.num_rows))
    assert {spec.name for spec in layout.specs} == {spec.name for spec in tables}
    covered = [key for group in layout.groups for key in range(group.start, group.stop)]
    assert covered == owned
    assert len(layout.groups) == len({(spec.dim, spec.dtype) for spec in tables})
    for spec in tables:
        group = layout.groups[layout.group_of(spec.name)]
        assert (group.dim, group.dtype) == (spec.dim, spec.dtype)
        assert layout.spec(spec.name) is spec


@settings(deadline=None)
@given(specs, st.data())
def test_ids_are_split_into_the_ranges_of_the_groups(tables, data):
    layout = RowLayout(tables)
    chosen = data.draw(st.lists(st.integers(0, layout.num_rows - 1), max_size=12))
    ids = torch.tensor(sorted(chosen), dtype=torch.int64)
    parts = layout.split(ids)
    assert torch.equal(torch.cat(parts), ids)
    assert [part.numel() for part in parts] == layout.group_sizes(ids)
    for part, group in zip(parts, layout.groups, strict=True):
        assert all(group.start <= key < group.stop for key in part.tolist())


def test_split_gives_every_group_a_run_even_an_empty_one():
    layout = RowLayout(MIXED)
    parts = layout.split(torch.tensor([0, 29, 37, 39]))
    assert [part.tolist() for part in parts] == [[0, 29], [], [37, 39]]
    parts = layout.split(torch.empty(0, dtype=torch.int64))
    assert [part.tolist() for part in parts] == [[], [], []]


@pytest.mark.parametrize("dim", [8, 4])
def test_two_tables_of_one_name_are_refused(dim):
    with pytest.raises(ConfigError, match="two tables are named 'user'"):
        RowLayout([TableSpec("user", 10, 8), TableSpec("item", 1, 8), TableSpec("user", 10, dim)])


def test_a_store_needs_a_table():
    with pytest.raises(ConfigError, match="at least one table"):
        RowLayout([])


def test_an_unknown_table_is_answered_with_those_there_are():
    layout = RowLayout(MIXED)
    for ask in (layout.spec, layout.group_of):
        with pytest.raises(
            ConfigError,
            match="no table 'users' in this store; it holds city, item, tag, user, word",
        ):
            ask("users")
