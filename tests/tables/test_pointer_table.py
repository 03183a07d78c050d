"""Codes decode with the pointers they were made from, or not at all."""

import copy
import dataclasses

import pytest
import torch

from outsize import Codes
from outsize.errors import DataError, IdError
from outsize.spec import TableSpec
from outsize.tables import CCETable, build_table, quantize
from outsize.tables.pointer_table import fingerprint

SPEC = TableSpec("ad", num_rows=500, dim=8)
IDS = torch.tensor([3, 499, 3])


def cce(seed=0):
    return CCETable(SPEC, num_buckets=20, seed=seed)


def quantized(seed=0):
    return quantize(build_table("full", SPEC, seed=seed), codes=20)


def test_codes_of_before_a_reclustering_are_refused():
    table = cce()
    codes = table.encode(IDS)
    assert torch.equal(table.decode(codes), table(IDS))
    table.recluster()
    with pytest.raises(DataError, match=r"'ad'.*before its pointers changed.*encode the ids again"):
        table.decode(codes)
    assert torch.equal(table.decode(table.encode(IDS)), table(IDS))


def test_every_reclustering_has_a_version_of_its_own():
    table = cce()
    versions = {table.codes_version}
    for _ in range(4):
        table.recluster()
        versions.add(table.codes_version)
    assert len(versions) == 5


@pytest.mark.parametrize("make", [cce, quantized])
def test_codes_follow_the_pointers_of_a_loaded_state(make):
    one, other = make(seed=1), make(seed=2)
    codes = one.encode(IDS)
    with pytest.raises(DataError, match="'ad'"):
        other.decode(codes)
    stale = other.encode(IDS)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.decode(codes), one(IDS))
    with pytest.raises(DataError, match="loaded state"):
        other.decode(stale)


def test_training_alone_leaves_codes_valid():
    table = cce()
    codes = table.encode(IDS)
    with torch.no_grad():
        table.weight += 1
    assert torch.equal(table.decode(codes), table(IDS))
    assert torch.equal(table.double().decode(codes), table(IDS))
    assert copy.deepcopy(table).codes_version == table.codes_version


@pytest.mark.parametrize("make", [cce, quantized])
def test_a_resumed_table_reads_the_codes_of_before(make, tmp_path):
    saved, loaded = make(seed=1), make(seed=2)
    saved.recluster()
    torch.save(saved.state_dict(), tmp_path / "state")
    loaded.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert loaded.codes_version == saved.codes_version
    assert torch.equal(loaded.decode(saved.encode(IDS)), saved(IDS))


def test_a_table_that_is_served_without_pointers_still_reads_codes():
    table = cce()
    table.recluster()
    codes, expected = table.encode(IDS), table(IDS)
    weights = {"weight": table.weight.detach().clone()}
    table.pointers.zero_()
    table.load_state_dict(weights, strict=False)
    assert torch.equal(table.decode(codes), expected)


def test_codes_without_a_version_or_of_another_width_are_refused():
    table = cce()
    codes = table.encode(IDS)
    with pytest.raises(DataError, match="'ad': codes without a version"):
        table.decode(Codes(codes.values))
    narrow = dataclasses.replace(codes, values=codes.values[:, 1:])
    with pytest.raises(DataError, match=r"'ad': codes have 8 pointers.*\(3, 7\)"):
        table.decode(narrow)


@pytest.mark.parametrize("make", [cce, quantized])
@pytest.mark.parametrize("bad", [-1, 500])
def test_ids_out_of_range_are_not_encoded(make, bad):
    with pytest.raises(IdError, match=f"'ad': id {bad} is outside"):
        make().encode(torch.tensor([0, bad]))


def test_a_fingerprint_sees_values_their_places_and_their_number():
    base = torch.arange(600_000, dtype=torch.int16)
    changed, swapped = base.clone(), base.clone()
    changed[599_999] += 1
    swapped[:2] = swapped[:2].flip(0)
    found = [fingerprint([t]) for t in (base, changed, swapped, base[:-1])]
    found += [fingerprint([base, base]), fingerprint([])]
    assert len(set(found)) == 6
    assert fingerprint([base.clone()]) == found[0]
    assert all(0 <= value < 1 << 63 for value in found)
