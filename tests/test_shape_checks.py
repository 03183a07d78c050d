"""Tests check shapes and types of every call, so a wrong one is noticed."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, Int64, TypeCheckError
from torch import Tensor

import outsize
from outsize.kernels.ragged import Ragged

pytest.importorskip("beartype")
from shape_checks import checked


@checked
def scaled(rows: Float[Tensor, "n d"], by: Float[Tensor, " n"], power: float = 1) -> object:
    return rows * by[:, None] ** power


@checked
def halves(values: Float[Tensor, " n"], keep: bool) -> Float[Tensor, " n"]:
    return values if keep else values[::2]


def test_the_package_is_checked():
    with pytest.raises(TypeCheckError):
        outsize.TableSpec("ad", "many", 4)
    with pytest.raises(TypeCheckError):
        Ragged(torch.zeros(2), torch.tensor([0, 2]))


def test_types_ranks_and_sizes_that_differ_are_refused():
    rows = torch.zeros(3, 2)
    assert scaled(rows, torch.ones(3)).shape == (3, 2)
    for wrong in (torch.ones(2), torch.ones(3, 1), torch.ones(3, dtype=torch.int64), [1.0]):
        with pytest.raises(TypeCheckError):
            scaled(rows, wrong)
    with pytest.raises(TypeCheckError):
        scaled(rows, torch.ones(3), power="two")


def test_a_result_must_fit_the_arguments():
    assert halves(torch.zeros(4), True).shape == (4,)
    with pytest.raises(TypeCheckError):
        halves(torch.zeros(4), False)


def test_sizes_are_those_of_one_call():
    @checked
    def outer(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        halves(values[:1], True)
        return values

    outer(torch.zeros(4))
    outer(torch.zeros(5))


def test_inner_functions_are_checked_each_with_what_surrounds_it():
    def made(add):
        @checked
        def added(values: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
            return torch.add(values, add)

        return added

    one, two = made(1), made(2)
    ids = torch.tensor([5])
    assert (one(ids).item(), two(ids).item()) == (6, 7)
    for function in (one, two):
        with pytest.raises(TypeCheckError):
            function(ids[0])


def test_a_checked_function_keeps_nothing_alive_that_surrounded_it():
    def made():
        values = torch.zeros(3)

        @checked
        def first(at: int) -> object:
            return values[at]

        first(0)
        return weakref.ref(values)

    gone = made()
    gc.collect()
    assert gone() is None


def test_arguments_of_generators_are_checked_when_they_are_called():
    @checked
    def parts(values: Float[Tensor, " n"]) -> Iterator[Tensor]:
        yield values

    assert len(list(parts(torch.zeros(2)))) == 1
    with pytest.raises(TypeCheckError):
        parts(torch.zeros(2, 2))


def test_fields_of_dataclasses_are_checked():
    @checked
    @dataclass(frozen=True)
    class Pair:
        left: Float[Tensor, " n"]
        right: Float[Tensor, " n"]

    Pair(torch.zeros(2), torch.zeros(2))
    with pytest.raises(TypeCheckError):
        Pair(torch.zeros(2), torch.zeros(3))


def test_unchecked_shapes_are_not_checked(unchecked_shapes):
    assert halves(torch.zeros(4), False).shape == (2,)
