"""Caches saved by any number of ranks load on any other."""

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from outsize.errors import CheckpointError, ConfigError
from outsize.negatives import (
    NegativeCache,
    ShardedNegativeCache,
    load_cache,
    save_cache,
    write_cache,
)
from outsize.negatives.cache.contract import UNKNOWN_PUSHED
from outsize.ranks.thread_ranks import run_as_ranks
from outsize.verified_folders import FORMAT

FEATURES = {"id": ((), torch.int64), "tokens": ((2,), torch.uint16)}


def make(ranks=None, num_items=12, dim=2, **options):
    options = {"features": FEATURES, "precision": "int8", **options}
    if ranks is None:
        return NegativeCache(num_items, dim, **options)
    return ShardedNegativeCache(num_items, dim, group=ranks, **options)


def push(cache, keys):
    keys = torch.as_tensor(keys, dtype=torch.int64)
    features = {"id": keys, "tokens": (keys.unsqueeze(1) + torch.tensor([0, 6000])).short()}
    features["tokens"] = features["tokens"].view(torch.uint16)
    generator = torch.Generator().manual_seed(len(keys))
    embeddings = torch.randn(len(keys), cache.dim, generator=generator)
    return cache.push(features, embeddings, keys, keys / 7)


def live(cache, first, num_steps=3):
    """Some steps of a rank: pushes, draws, rewrites and a sweep."""
    size, index = cache.shard.count, cache.shard.index
    for step in range(first, first + num_steps):
        push(cache, torch.arange(4 * step, 4 * step + 4)[index::size])
        queries = torch.randn(2, cache.dim, generator=torch.Generator().manual_seed(step))
        draw = cache.sample(queries, 3)
        cache.commit(draw, draw.embeddings * 1.25)
        due = cache.oldest(1)
        cache.rewrite(due, torch.ones(len(due.keys), cache.dim))
    return draw


def write(folder, files):
    """The manifest of what ranks wrote."""
    whole = {name: facts for part in files for name, facts in part.items()}
    (folder / "manifest.json").write_text(json.dumps({"format": FORMAT, "files": whole}))


def save(folder, size, prepare, **options):
    """Save a cache that so many ranks share, and say what each kept."""
    folder.mkdir(parents=True)

    def work(ranks):
        cache = make(ranks, **options)
        prepare(cache)
        return write_cache(cache, folder), items_of(cache)

    files, kept = zip(*run_as_ranks(size, work), strict=True)
    write(folder, files)
    return [item for part in kept for item in part]


def items_of(cache):
    """All that is known of each item held here, but for its row."""
    lines = {name: values[: cache.num_held_here] for name, values in cache.tensors_here().items()}
    assert (lines["keys"] >= 0).all()
    return list(zip(*(map(str, values.tolist()) for values in lines.values()), strict=True))


def content(cache):
    return {name: values.clone() for name, values in cache.tensors_here().items()}


@pytest.mark.parametrize("eviction", ["fifo", "lru"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_as_many_ranks_go_on_as_if_they_had_never_stopped(size, eviction, tmp_path):
    def work(ranks):
        cache = make(ranks, 9, eviction=eviction, seed=3)
        live(cache, 0)
        files = write_cache(cache, tmp_path)
        everyone = ranks.swap_counts(torch.zeros(size, 1, dtype=torch.int64))  # all have written
        assert len(everyone) == size
        return files, live(cache, 3), content(cache), cache.counters(), cache.num_held

    files, *_ = zip(*(uninterrupted := run_as_ranks(size, work)), strict=True)
    write(tmp_path, files)

    def resume(ranks):
        cache = make(ranks, 9, eviction=eviction, seed=8)
        push(cache, [1, 2, 77])
        assert load_cache(cache, tmp_path) == 0
        return live(cache, 3), content(cache), cache.counters(), cache.num_held

    for found, (_, *expected) in zip(run_as_ranks(size, resume), uninterrupted, strict=True):
        assert torch.equal(found[0].keys, expected[0].keys)
        assert torch.equal(found[0].logits, expected[0].logits)
        assert torch.equal(found[0].uniforms, expected[0].uniforms)
        assert all(torch.equal(found[1][name], expected[1][name]) for name in expected[1])
        assert found[2:] == tuple(expected[2:])


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["fifo", "lru"]), st.integers(1, 4))
def test_every_item_comes_once_to_its_new_owner_with_all_that_is_known_of_it(
    before, after, eviction, num_steps
):
    with tempfile.TemporaryDirectory() as name:
        saved = save(Path(name) / "a", before, lambda c: live(c, 0, num_steps), eviction=eviction)

        def work(ranks):
            cache = make(ranks, 24, eviction=eviction)
            assert load_cache(cache, Path(name) / "a") == 0
            assert (cache.own.keys[: cache.num_held_here] % ranks.size == ranks.rank).all()
            assert cache.clock == num_steps
            assert torch.equal(
                cache.own.rows_of(cache.own.keys[: cache.num_held_here]),
                torch.arange(cache.num_held_here),
            )
            return items_of(cache), cache.num_held

        found = run_as_ranks(after, work)
        assert sorted(item for part, _ in found for item in part) == sorted(saved)
        assert {num for _, num in found} == {len(saved)}


def test_on_other_ranks_counts_go_on_and_draws_are_by_their_own_seed(tmp_path):
    one = make(num_items=8, seed=3)
    live(one, 0)
    save_cache(one, tmp_path / "one")

    def work(ranks):
        cache = make(ranks, 8, seed=6)
        seed = cache.counters()[-1]
        load_cache(cache, tmp_path / "one")
        return cache.counters() == [*one.counters()[:-1], seed]

    assert run_as_ranks(2, work) == [True, True]


def test_a_cache_of_one_process_and_shards_load_each_other(tmp_path):
    one = make(num_items=8)
    live(one, 0)
    save_cache(one, tmp_path / "one")

    def work(ranks):
        cache = make(ranks, 8)
        load_cache(cache, tmp_path / "one")
        return write_cache(cache, tmp_path), items_of(cache)

    found = run_as_ranks(3, work)
    assert sorted(item for _, part in found for item in part) == sorted(items_of(one))
    write(tmp_path, [files for files, _ in found])
    back = make(num_items=8)
    load_cache(back, tmp_path)
    assert sorted(items_of(back)) == sorted(items_of(one))
    assert back.clock == one.clock


def test_where_there_is_less_room_the_first_to_be_displaced_are_left_out(tmp_path):
    def fill(cache):
        for first in (0, 6, 12):
            push(cache, torch.arange(first, first + 6)[cache.shard.index :: cache.shard.count])
            cache.commit()

    save(tmp_path / "a", 2, fill, num_items=18)
    small = make(num_items=8)
    assert load_cache(small, tmp_path / "a") == 10
    held = set(small.keys.tolist())
    assert {12, 13, 14, 15, 16, 17} < held  # all of the last push, and two of the one before
    assert held < set(range(6, 18))
    push(small, [50, 51])
    assert set(small.keys.tolist()) == {50, 51, *range(12, 18)}


def test_an_empty_cache_is_saved_and_loaded(tmp_path):
    save(tmp_path / "a", 2, lambda cache: cache.commit())
    cache = make()
    push(cache, [1, 2])
    assert load_cache(cache, tmp_path / "a") == 0
    assert (cache.num_held, cache.clock) == (0, 1)
    assert len(cache.oldest(5).keys) == 0
    push(cache, [4])
    assert cache.keys[:2].tolist() == [4, -1]


def test_large_lines_are_copied_a_piece_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("outsize.rank_files._CHUNK_BYTES", 40)
    saved = save(tmp_path / "a", 3, lambda cache: live(cache, 0, 4), num_items=30)
    cache = make(num_items=30)
    load_cache(cache, tmp_path / "a")
    assert sorted(items_of(cache)) == sorted(saved)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (truncate, r"cache-00001-of-00002.safetensors: it has .* bytes where .* were written"),
        (flip, "cache-00001-of-00002.safetensors: its checksum is not the one written"),
        (Path.unlink, "cache-00001-of-00002.safetensors: it is missing"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_changed(harm, words, tmp_path):
    save(tmp_path / "a", 2, lambda cache: live(cache, 0))
    harm(tmp_path / "a" / "cache-00001-of-00002.safetensors")
    refuses(make(), tmp_path / "a", words)


def refuses(cache, folder, words):
    push(cache, [5, 6, 7])
    before, counters = content(cache), cache.counters()
    with pytest.raises(CheckpointError, match=words) as caught:
        load_cache(cache, folder)
    assert "\n" not in str(caught.value)
    assert cache.counters() == counters
    assert all(torch.equal(values, before[name]) for name, values in content(cache).items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "bfloat16"}, r"items.scales is F32 .*, but here it is absent"),
        ({"dim": 3}, r"items.vectors is I8 of shape \(2,\) per item, but here it is .* \(3,\)"),
        ({"features": {"id": ((), torch.int64)}}, "items.feature_tokens is U16 .*, but here"),
    ],
)
def test_a_cache_of_another_kind_is_refused(options, words, tmp_path):
    save(tmp_path / "a", 2, lambda cache: live(cache, 0))
    other = make(**options)
    with pytest.raises(CheckpointError, match=words + ".*: build the cache as it was saved"):
        load_cache(other, tmp_path / "a")
    assert other.num_held == 0


def test_folders_without_a_cache_and_foreign_files_are_refused(tmp_path):
    refuses(make(), tmp_path / "nowhere", "is not a checkpoint: there is no such folder")
    folder = tmp_path / "a"
    save(folder, 2, lambda cache: live(cache, 0))
    manifest = json.loads((folder / "manifest.json").read_text())
    second = manifest["files"].pop("cache-00001-of-00002.safetensors")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    refuses(make(), folder, "of the 2 files of a negative cache it lists 1; save it again")
    manifest["files"] = {"else.safetensors": second}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    refuses(make(), folder, "holds no negative cache: choose another folder")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "is not a file of a negative cache: save it again"),
        ({"cache": "{"}, "is not a file of a negative cache"),
        ({"cache": '{"format": 9}'}, "has format 9, but this version reads format 1"),
    ],
)
def test_files_that_others_wrote_are_refused(metadata, words, tmp_path):
    name = "cache-00000-of-00001.safetensors"
    save_file({"keys": torch.arange(3)}, tmp_path / name, metadata)
    data = (tmp_path / name).read_bytes()
    write(tmp_path, [{name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}])
    refuses(make(), tmp_path, words)


def test_a_cache_is_not_saved_over_something_else(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty: choose another folder for the cache"):
        save_cache(make(), tmp_path)


def test_files_from_before_pushed_items_were_counted_load_as_of_a_cache_that_is_long_full(tmp_path):
    cache = make(num_items=4)
    push(cache, [1, 2, 3])
    (name,) = write_cache(cache, tmp_path)
    with safe_open(tmp_path / name, "pt") as tensors:
        header = json.loads(tensors.metadata()["cache"])
        lines = {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118
    assert header["counters"].pop("num_pushed") == 3
    save_file(lines, tmp_path / name, {"cache": json.dumps(header)})
    data = (tmp_path / name).read_bytes()
    write(tmp_path, [{name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}])
    again = make(num_items=4)
    assert load_cache(again, tmp_path) == 0
    assert again.num_held == 3
    assert again.num_pushed == UNKNOWN_PUSHED
    push(again, [9])
    assert again.num_pushed > UNKNOWN_PUSHED
