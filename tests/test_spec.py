import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outsize.errors import ConfigError
from outsize.spec import MEMORY_KINDS, Budget, FeatureSpec, Init, MemoryUse, TableSpec

# Init


@pytest.mark.parametrize("std", [-0.1, math.nan, math.inf, -math.inf])
def test_an_impossible_std_is_refused(std):
    with pytest.raises(ConfigError, match=f"init std must be a finite number >= 0, but got {std}"):
        Init(std=std)


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_unknown_distribution_is_refused():
    with pytest.raises(ConfigError, match="must be uniform, normal or zeros, but got 'gamma'"):
        Init("gamma")


def test_the_default_std_shrinks_with_the_width():
    assert Init().std_for(1) == pytest.approx(1 / math.sqrt(3))
    assert Init("normal").std_for(12) == pytest.approx(1 / 6)


def test_a_given_std_holds_at_every_width():
    assert Init(std=0.5).std_for(1) == Init(std=0.5).std_for(100) == 0.5
    assert Init(std=0.0).std_for(8) == 0.0


def test_zeros_have_no_spread_whatever_the_std():
    assert Init("zeros", std=2.0).std_for(8) == 0.0


# Tables and features


@pytest.mark.parametrize("name", ["user", "c1", "_x", "0", "a-b", "A_b-9"])
def test_names_of_letters_digits_and_dashes_are_accepted(name):
    assert TableSpec(name, 1, 1).name == name
    assert FeatureSpec(name).name == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a/b", "é", "a\n", "-a"])
def test_names_that_cannot_be_keys_are_refused(name):
    with pytest.raises(ConfigError, match=r"table name .* is not usable as a key"):
        TableSpec(name, 1, 1)
    with pytest.raises(ConfigError, match=r"feature name .* is not usable as a key"):
        FeatureSpec(name)


@pytest.mark.parametrize("size", [0, -3])
def test_a_table_needs_rows_and_width(size):
    with pytest.raises(ConfigError, match=f"table 'user': num_rows must be >= 1, but got {size}"):
        TableSpec("user", size, 8)
    with pytest.raises(ConfigError, match=f"table 'user': dim must be >= 1, but got {size}"):
        TableSpec("user", 8, size)


def test_rows_are_floating_point():
    assert TableSpec("user", 8, 8, dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ConfigError, match=r"'user': dtype must be floating, but got torch\.int8"):
        TableSpec("user", 8, 8, dtype=torch.int8)


def test_a_feature_points_to_the_table_of_its_name_unless_told_otherwise():
    assert FeatureSpec("user").table == "user"
    assert FeatureSpec("friend", table="user").table == "user"


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_unknown_pooling_is_refused():
    with pytest.raises(ConfigError, match="'user': pooling must be one of sum, mean, max, but got"):
        FeatureSpec("user", pooling="median")


# Budgets


def test_a_budget_is_given_in_one_unit():
    with pytest.raises(ConfigError, match="as max_params or as max_bytes, not as both"):
        Budget(max_params=1, max_bytes=1)


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(max_params=999), "1,000 parameters, more than the budget of 999"),
        (Budget(max_bytes=3999), "4,000 bytes, more than the budget of 3,999"),
        (Budget(max_params=0), "1,000 parameters, more than the budget of 0"),
    ],
)
def test_a_cost_above_the_budget_is_refused(budget, words):
    with pytest.raises(ConfigError, match=f"^table 'user' needs {words}"):
        budget.require("table 'user'", num_params=1000, num_bytes=4000)


@pytest.mark.parametrize("budget", [Budget(), Budget(max_params=1000), Budget(max_bytes=4000)])
def test_a_cost_that_meets_the_budget_is_accepted_and_one_more_is_not(budget):
    budget.require("table 'user'", num_params=1000, num_bytes=4000)
    if budget != Budget():
        with pytest.raises(ConfigError, match="more than the budget"):
            budget.require("table 'user'", num_params=1001, num_bytes=4001)


# Memory


def test_memory_is_counted_by_kind_and_device():
    use = MemoryUse.of(
        {
            "parameters": [torch.zeros(3, 2), torch.zeros(4, dtype=torch.bfloat16)],
            "index": [torch.zeros(5, dtype=torch.int64)],
            "cache": [torch.zeros(7, device="meta"), torch.zeros(1)],
        }
    )
    assert use.num_parameters == 3 * 2 + 4
    assert use.bytes_by_device == {
        "cpu": {"parameters": 24 + 8, "index": 40, "optimizer": 0, "cache": 4},
        "meta": {"parameters": 0, "index": 0, "optimizer": 0, "cache": 28},
    }
    assert use.bytes_of("cache") == 32
    assert use.bytes_of("optimizer") == 0
    assert use.total_bytes == 32 + 40 + 32


def test_nothing_costs_nothing():
    for nothing in (MemoryUse(), MemoryUse.of({}), MemoryUse.of({"parameters": []})):
        assert nothing.num_parameters == nothing.total_bytes == nothing.bytes_of("parameters") == 0


kinds = st.dictionaries(
    st.sampled_from(MEMORY_KINDS), st.lists(st.integers(0, 5).map(torch.zeros), max_size=3)
)


@given(kinds, kinds)
def test_the_sum_of_two_uses_is_the_use_of_both(one, other):
    both = {kind: [*one.get(kind, []), *other.get(kind, [])] for kind in MEMORY_KINDS}
    assert MemoryUse.of(one) + MemoryUse.of(other) == MemoryUse.of(both)


def test_adding_keeps_devices_apart_and_the_terms_as_they_were():
    cpu = MemoryUse.of({"parameters": [torch.zeros(2)]})
    meta = MemoryUse.of({"optimizer": [torch.zeros(3, device="meta")]})
    total = cpu + meta + cpu
    assert total.num_parameters == 4
    assert total.bytes_by_device["cpu"]["parameters"] == 16
    assert total.bytes_by_device["meta"]["optimizer"] == 12
    assert cpu == MemoryUse.of({"parameters": [torch.zeros(2)]})
    assert meta.num_parameters == 0
