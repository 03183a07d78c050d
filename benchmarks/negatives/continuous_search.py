"""Search while a model goes on learning: recall against the share of items encoded again.

    python -m benchmarks.negatives.continuous_search DATA --out benchmarks/results

DATA is a Parquet file of pairs: the synopses and descriptions of Debian packages, with a column
`split`. A text model is trained, and all descriptions are written to an `ItemIndex`. Then the model
goes on learning on new pairs; after each such version a share of the items is encoded again, by
several policies, and held-out queries of the new model search the index. Each is compared with
encoding all items again.

Users ask held-out queries, some much more often than others (Zipf, exponent 1). Between versions
they ask 300 times, which counts what is asked for, and repairs candidates where the policy does.
Finished cells are kept in `--work`, so an interrupted run continues where it stopped, and several
processes with the same folder share the work.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.negatives.continuous_results import table, write_plot
from benchmarks.negatives.text_towers import Lesson, Texts, train_versions
from outsize.bench.runner import results_page, results_stem, say_to_console, write_results
from outsize.files import write_text_atomically
from outsize.reporting.environment import environment
from outsize.search import ItemIndex, Repair

NAME = "continuous-search"
COMMAND = "python -m benchmarks.negatives.continuous_search DATA"
ABOUT = "search while a model goes on learning: recall by the share of items encoded again"
SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5)
SHOWN_SHARE = 0.1
"""The share at which every version is measured; at others, only the last one is."""
K, NUM_VERSIONS = 10, 5


@dataclass(frozen=True)
class Policy:
    """What is done about stale items.

    Attributes:
        order: Which are encoded again first, as in `REFRESH_ORDERS`.
        correct: Whether the others are mapped to the new model.
        factor: Candidates per answer that a search repairs; 0 for none.
    """

    order: str
    correct: bool = False
    factor: int = 0


POLICIES = {
    "oldest first": Policy("oldest"),
    "at random": Policy("random"),
    "most asked first": Policy("asked"),
    "most asked, mapped": Policy("asked", correct=True),
    "at random, mapped": Policy("random", correct=True),
    "most asked, repaired": Policy("asked", factor=2),
    "most asked, mapped, repaired": Policy("asked", correct=True, factor=2),
}


@dataclass(frozen=True)
class Setting:
    """How fast a model changes from version to version.

    Attributes:
        first_steps: Steps before the first version, on half of the pairs.
        steps: Steps of each further version, each on a tenth of the pairs that is new to it.
        learning_rate: Of these; the first steps have 0.002.
    """

    first_steps: int
    steps: int
    learning_rate: float


SETTINGS = {"settled": Setting(800, 20, 5e-4), "early": Setting(100, 20, 2e-3)}


@dataclass(frozen=True)
class World:
    """The vectors of each version, and who asks what.

    Attributes:
        items: The vectors of all items by each version.
        queries: The vectors of the held-out queries by each version.
        wanted: The item of each query.
        popularity: How often each query is asked, in sum 1.
    """

    items: list[Tensor]
    queries: list[Tensor]
    wanted: Tensor
    popularity: Tensor


def make_world(texts: Texts, setting: Setting, seed: int, num_queries: int, scale: float) -> World:
    """Train all versions and encode everything with each of them."""
    generator = torch.Generator().manual_seed(1000 + seed)
    train = texts.is_train.nonzero().flatten()
    train = train[torch.randperm(len(train), generator=generator)]
    half, tenth = len(train) // 2, len(train) // 10
    lessons = [Lesson(train[:half], max(1, int(setting.first_steps * scale)), 2e-3)]
    for version in range(NUM_VERSIONS):
        rows = train[half + version * tenth : half + (version + 1) * tenth]
        lessons.append(Lesson(rows, max(1, int(setting.steps * scale)), setting.learning_rate))
    held_out = (~texts.is_train).nonzero().flatten()
    asked = held_out[torch.randperm(len(held_out), generator=generator)[:num_queries]]
    popularity = 1.0 / torch.arange(1, len(asked) + 1, dtype=torch.float64)
    everything = torch.arange(texts.num_items)
    items, queries = [], []
    for model in train_versions(texts, lessons, seed):
        items.append(model.encode(model.items, texts.items, everything))
        queries.append(model.encode(model.queries, texts.queries, asked))
    return World(items, queries, asked, popularity / popularity.sum())


def simulate(
    world: World, policy: Policy, share: float, seed: int, folder: Path, num_asked: int
) -> dict[str, list[float]]:
    """What users find after each version, and the share of items that was encoded for it."""
    num_items = len(world.items[0])
    keys = [str(row) for row in range(num_items)]
    generator = torch.Generator().manual_seed(2000 + seed)
    found: dict[str, list[float]] = {}
    with ItemIndex.create(folder, world.items[0].shape[1]) as index:
        index.write(keys, world.items[0], "0")
        for version in range(NUM_VERSIONS + 1):
            encode = encoder(world.items[version])
            repair = Repair(encode, str(version), policy.factor) if policy.factor else None
            spent = 0
            if version:
                spent = index.refresh(
                    encode, str(version), round(share * num_items), order=policy.order,
                    correct=policy.correct, seed=seed * 100 + version, batch_size=num_items,
                ).num_encoded  # fmt: skip
            if version and (share == SHOWN_SHARE or version == NUM_VERSIONS):
                answers = answers_of(index, world.queries[version], repair)
                for name, value in judge(world, version, answers).items():
                    found.setdefault(name, []).append(value)
            draws = torch.multinomial(world.popularity, num_asked, True, generator=generator)
            if policy.order == "asked" and version < NUM_VERSIONS:
                traffic = world.queries[version][draws]
                spent += index.search(traffic, K, repair=repair).num_repaired
            if version:
                found.setdefault("encoded", []).append(spent / num_items)
    return found


def encoder(vectors: Tensor) -> Callable[[list[str]], Tensor]:
    """A function from keys to vectors."""
    return lambda keys: vectors[[int(key) for key in keys]]


def answers_of(index: ItemIndex, queries: Tensor, repair: Repair | None) -> Tensor:
    """The items that are found; nothing is counted or written."""
    reader = ItemIndex.open(index.path, verify=False)
    lists = reader.search(queries, K, repair=repair, count=False).keys
    return torch.tensor([[int(key) for key in line] for line in lists])


def judge(world: World, version: int, answers: Tensor) -> dict[str, float]:
    """Recall of answers, and their overlap with those of items that are all encoded again."""
    exact = exact_answers(world, version)
    hits = (answers == world.wanted.unsqueeze(1)).any(dim=1).double()
    full_hits = (exact == world.wanted.unsqueeze(1)).any(dim=1).double()
    same = (answers.unsqueeze(2) == exact.unsqueeze(1)).any(dim=2).double().mean(dim=1)
    return {
        "recall": float(hits.mean()),
        "full": float(full_hits.mean()),
        "recall_as_asked": float(hits @ world.popularity),
        "full_as_asked": float(full_hits @ world.popularity),
        "overlap": float(same.mean()),
        "overlap_as_asked": float(same @ world.popularity),
    }


def exact_answers(world: World, version: int) -> Tensor:
    """The best items by the vectors of one version."""
    parts = world.queries[version].split(256)
    return torch.cat([(part @ world.items[version].T).topk(K, dim=1).indices for part in parts])


def drift(world: World) -> list[float]:
    """Mean of ‖old − new‖² of items, from each version to the next."""
    pairs = zip(world.items[:-1], world.items[1:], strict=True)
    return [float((old - new).square().sum(dim=1).mean()) for old, new in pairs]


def run_seed(
    texts: Texts, seed: int, quick: bool, work: Path, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Simulate all settings, policies and shares with one seed; finished cells are read."""
    num_queries, num_asked, scale = (50, 40, 0.02) if quick else (600, 300, 1.0)
    cells = []
    for name, setting in SETTINGS.items():
        paths = {
            (label, share): work / f"{name}-{seed}-{label.replace(', ', '-')}-{share}.json"
            for label, share in grid(name)
        }
        left = [cell for cell, path in paths.items() if not path.exists()]
        random.Random(os.getpid()).shuffle(left)  # processes that share the work start apart
        world = make_world(texts, setting, seed, num_queries, scale) if left else None
        for label, share in left:
            path = paths[label, share]
            if world is None or path.exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = simulate(
                    world, POLICIES[label], share, seed, Path(folder) / "index", num_asked
                )
            cell = {"setting": name, "policy": label, "share": share, "seed": seed}
            write_text_atomically(path, json.dumps(cell | {"drift": drift(world)} | found))
            gap, spent = found["full"][-1] - found["recall"][-1], found["encoded"][-1]
            say(f"{name}, seed {seed}, {label}, {share:.0%}: {gap:+.4f} for {spent:.1%}")
        cells += [json.loads(path.read_text()) for path in paths.values()]
    return cells


def grid(setting: str) -> list[tuple[str, float]]:
    """Policies and shares of a setting; without a share, most policies are the same."""
    shares = SHARES if setting == "settled" else (0.0, 0.1, 0.5)
    cells = []
    for label, policy in POLICIES.items():
        if setting != "settled" and policy.order == "oldest":
            continue
        for share in shares:
            if share or label in ("at random", "most asked, repaired"):
                cells.append((label, share))
    return cells


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=ABOUT)
    parser.add_argument("data", type=Path, help="a Parquet file: synopsis, description, split")
    parser.add_argument("--out", type=Path, help="write the results to this folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--items", type=int, help="take so many pairs, spread over the file")
    parser.add_argument("--work", type=Path, help="keep finished cells in this folder")
    parser.add_argument("--plot", type=Path, help="draw the gap by the share encoded, as SVG")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the command")
    given = parser.parse_args()
    say = say_to_console()
    num_items = 3000 if given.quick else given.items
    texts = Texts.read(given.data, "synopsis", "description", num_items)
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        for seed in given.seeds:
            cells += run_seed(texts, seed, given.quick, work, say)
    facts = environment()
    results = {
        "benchmark": NAME,
        "command": COMMAND + (f" --items {given.items}" if given.items else ""),
        "environment": facts,
        "num_items": texts.num_items,
        "cells": cells,
    }
    page = results_page(f"{NAME}: {ABOUT}", results, table(results))
    say(page)
    if given.plot is not None:
        write_plot(results, given.plot)
    if given.out is not None:
        write_results(given.out / results_stem(NAME, facts), results, page)


if __name__ == "__main__":
    main()
