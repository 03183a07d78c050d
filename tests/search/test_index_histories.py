"""Histories of an index against a dictionary."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.search import ItemIndex, Repair

KEYS = [f"k{i}" for i in range(12)]
SETS = st.lists(st.sampled_from(KEYS), unique=True, max_size=8)
STEPS = st.one_of(
    st.tuples(st.just("write"), SETS),
    st.tuples(st.just("delete"), SETS),
    st.tuples(st.just("search"), st.integers(1, 5)),
    st.tuples(st.just("repair"), st.integers(1, 3)),
    st.tuples(st.just("refresh"), st.integers(0, 6)),
    st.tuples(st.just("learn"), st.just(None)),
    st.tuples(st.just("reopen"), st.booleans()),
)


class Model:
    """What an index should hold: key → (version, asked), and vectors by (key, version)."""

    def __init__(self):
        self.rows = {}
        self.version = 0
        self.order = []

    def vector(self, key, version):
        generator = torch.Generator().manual_seed(hash((KEYS.index(key), version)) % (1 << 31))
        return torch.randn(3, generator=generator)

    def encode(self, keys):
        return torch.stack([self.vector(key, self.version) for key in keys])

    def write(self, keys):
        for key in keys:
            asked = self.rows.pop(key, (0, 0))[1]
            self.rows[key] = (self.version, asked)

    def best(self, query, k):
        scored = [(float(query @ self.vector(key, v)), key) for key, (v, _) in self.rows.items()]
        return sorted(scored, key=lambda pair: -pair[0])[:k]

    def count(self, keys):
        for key in keys:
            version, asked = self.rows[key]
            self.rows[key] = (version, asked + 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=14), st.integers(0, 1000))
def test_an_index_does_what_a_dictionary_does(tmp_path_factory, steps, seed):
    folder = tmp_path_factory.mktemp("histories") / "index"
    model, generator = Model(), torch.Generator().manual_seed(seed)
    index = ItemIndex.create(folder, 3)
    for step, value in steps:
        if step == "write":
            index.write(
                value, model.encode(value) if value else torch.ones(0, 3), str(model.version)
            )
            model.write(value)
        elif step == "delete":
            known = [key for key in value if key in model.rows]
            index.delete(known)
            for key in known:
                del model.rows[key]
        elif step == "learn":
            model.version += 1
        elif step == "refresh":
            stale = [key for key, (version, _) in model.rows.items() if version != model.version]
            by_age = sorted(stale, key=lambda key: model.rows[key][0])
            chosen = sorted(by_age, key=lambda key: -model.rows[key][1])[:value]
            report = index.refresh(model.encode, str(model.version), value, batch_size=2)
            model.write(chosen)
            assert (report.num_encoded, report.num_stale) == (len(chosen), len(stale) - len(chosen))
        elif step == "search":
            query = torch.randn(3, generator=generator)
            found = index.search(query.unsqueeze(0), value)
            expected = model.best(query, value)
            assert found.keys == [[key for _, key in expected]]
            assert found.scores[0][: len(expected)].tolist() == pytest.approx(
                [score for score, _ in expected], abs=1e-5
            )
            model.count(found.keys[0])
        elif step == "repair":
            query = torch.randn(3, generator=generator)
            candidates = [key for _, key in model.best(query, 2 * value)]
            stale = [key for key in candidates if model.rows[key][0] != model.version]
            found = index.search(
                query.unsqueeze(0), value, repair=Repair(model.encode, str(model.version), 2)
            )
            assert found.num_repaired == len(stale)
            fresh = {key: float(query @ model.vector(key, model.version)) for key in candidates}
            assert found.keys == [sorted(fresh, key=lambda key: -fresh[key])[:value]]
            assert set(found.versions[0]) <= {str(model.version)}
            model.count(found.keys[0])
            model.write([key for key in model.rows if key in stale])
        else:
            index.close()
            index = ItemIndex.open(folder, writable=True, verify=value)
        assert index.keys() == list(model.rows)
    keys = list(model.rows)
    assert len(index) == len(keys)
    assert index.versions_of(keys) == [str(version) for version, _ in model.rows.values()]
    assert index.asked(keys) == [asked for _, asked in model.rows.values()]
    for key, (version, _) in model.rows.items():
        assert torch.equal(index.read([key])[0], model.vector(key, version))
    sizes = [segment.num_live for segment in index.state.segments]
    assert all(size >= 2 * sum(sizes[i + 1 :]) for i, size in enumerate(sizes))
    index.close()
    shutil.rmtree(folder)
