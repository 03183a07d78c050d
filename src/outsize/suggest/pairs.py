"""A run on pairs of queries and items that have no label."""

from __future__ import annotations

from typing import Any

import numpy as np

from outsize.data.encoding.sources import first_of
from outsize.errors import DataError
from outsize.suggest.notes import rows_to_skip
from outsize.suggest.profile import Profile
from outsize.suggest.roles import LEFT_OUT, Decision, find_separator, in_words
from outsize.suggest.sample import Sample
from outsize.suggest.settings import training_settings
from outsize.suggest.splits import SPLIT_NAMES, SPLIT_WORDS
from outsize.suggest.suggestion import Suggestion, Wishes, require_columns
from outsize.suggest.times import times_in

_QUERIES = frozenset(
    ["user", "userid", "users", "customer", "customerid", "member", "visitor", "visitorid", "uid",
     "session", "sessionid", "reviewer", "reviewerid", "query", "queryid", "client", "account"]
)  # fmt: skip
_ITEMS = frozenset(
    ["item", "itemid", "items", "movie", "movieid", "product", "productid", "book", "track", "song",
     "artist", "article", "articleid", "video", "asin", "sku", "isbn", "doc", "docid", "business"]
)  # fmt: skip
_RATINGS = frozenset(["rating", "ratings", "stars", "score"])
_EDGE_ENDS = (("source", "target"), ("src", "dst"))
_MOST_QUERIES = 0.95
_LEAST_IDS, _MAX_RATINGS, _LIKED = 20, 30, 0.6
_DIM = 64


def find_pair(profiles: dict[str, Profile]) -> tuple[str, str] | None:
    """The columns of queries and items, by their names."""
    found = []
    for words in (_QUERIES, _ITEMS):
        names = [
            name
            for name, profile in profiles.items()
            if words & set(profile.words) and profile.num_estimated >= _LEAST_IDS
        ]
        if not names:
            return None
        found.append(names[0])
    return None if found[0] == found[1] else (found[0], found[1])


def find_edge_ends(profiles: dict[str, Profile]) -> tuple[str, str] | None:
    """The columns of a graph's edges, by their names; both have many values."""
    names = {name.strip().lower(): name for name in profiles}
    for ends in _EDGE_ENDS:
        found = [names[end] for end in ends if end in names]
        if len(found) == 2 and all(profiles[n].num_distinct >= _LEAST_IDS for n in found):
            return found[0], found[1]
    return None


def suggest_retrieval_run(
    sample: Sample,
    profiles: dict[str, Profile],
    wishes: Wishes,
    pair: tuple[str | None, str | None],
) -> Suggestion:
    """A two-tower run.

    Args:
        sample: The rows.
        profiles: Their columns.
        wishes: What a user says about them.
        pair: The columns of queries and items; those that are `None` are found by their names.
    """
    by_name = find_pair(profiles) or (None, None)
    query, item = (given or found for given, found in zip(pair, by_name, strict=True))
    if query is None or item is None:
        missing = "--query" if query is None else "--item"
        raise DataError(
            f"{first_of(sample.patterns)}: no column is named as queries and items are, such as "
            f"user_id and item_id: say which, {missing} COLUMN"
        )
    require_columns(sample, "--query", [query])
    require_columns(sample, "--item", [item])
    _require_pairs(profiles, query, item)
    data: dict[str, Any] = {
        "kind": "interactions", "path": list(sample.patterns), **sample.reading,
        "query": query, "item": item,
    }  # fmt: skip
    lacks_one = (profiles[query].codes < 0) | (profiles[item].codes < 0)
    skipped, notes = rows_to_skip(
        sample.bad_share, float(lacks_one.mean()), f"no {query!r} or no {item!r}"
    )
    data |= skipped
    rating = _rating(data, profiles, {query, item})
    split, column, reason = _split(profiles, query, wishes)
    uses = {
        query: ("query", "query", "one vector each"),
        item: ("item", "item", "one vector each"),
        rating: ("rating", "positive", f"pairs from {data.get('at_least', 0):g} on are used"),
        column: ("split", "split", reason),
    }
    decisions = []
    for name in sample.columns:
        kind, use, why = uses.get(
            name, ("", LEFT_OUT, "--drop" if name not in profiles
                   else "may be named in query_features or item_features")
        )  # fmt: skip
        values = in_words(profiles[name]) if name in profiles else ""
        decisions.append(Decision(name, kind, values, use, why))
    train = training_settings(sample.total_rows, most_epochs=20)
    sections = {
        "data": data,
        "data.split": split,
        "model": {"kind": "two-tower", "dim": _DIM},
        "negatives": {"kind": "in-batch", "log_q": True, "beta": 10.0},
        "embeddings": {"kind": "store", "dim": _DIM},
        "embeddings.optimizer": {"kind": "adagrad", "learning_rate": 0.2},
        "train": {"batch_size": train["batch_size"], "epochs": 20},
    }
    comments = {
        "data.split": reason,
        "negatives": "where items are look-ups, better and faster than a cache of negatives",
        "train": "training stops early, and the best validation counts",
    }
    is_estimate = sample.is_text and not sample.is_whole
    notes = [*sample.notes, *notes]
    return Suggestion(decisions, sections, comments, notes, sample.total_rows, is_estimate)


def _require_pairs(profiles: dict[str, Profile], query: str, item: str) -> None:
    """Refuse lists of items, and queries that have one row each: they leave nothing to hold out."""
    items, queries = profiles[item], profiles[query]
    found = find_separator(items) if items.form == "text" else None
    if items.form == "list" or (found is not None and found[0] != " "):
        raise DataError(
            f"column {item!r} holds several items per row, such as {items.values[0][:40]!r}: write "
            "a row for each pair"
        )
    if queries.num_estimated > _MOST_QUERIES * (queries.num_rows - queries.num_missing):
        raise DataError(
            f"nearly every row has a {query!r} of its own: name a column of queries that have "
            "several items, --query COLUMN"
        )


def _rating(data: dict[str, Any], profiles: dict[str, Profile], taken: set[str]) -> str:
    """Use pairs with high ratings only, if there are ratings; returns their column."""
    for name, profile in profiles.items():
        is_read = profile.numbers is not None and profile.decimal == "."
        if name in taken or not is_read or not _RATINGS & set(profile.words):
            continue
        assert profile.numbers is not None
        if 2 < profile.num_distinct <= _MAX_RATINGS:
            values = np.unique(profile.numbers[~np.isnan(profile.numbers)])
            bound = values[0] + _LIKED * (values[-1] - values[0])
            data.update({"positive": name, "at_least": float(values[values >= bound][0])})
            return name
    return ""


def _split(
    profiles: dict[str, Profile], query: str, wishes: Wishes
) -> tuple[dict[str, Any], str, str]:
    """The section `[data.split]`, the column it needs, and why."""
    for name, profile in profiles.items():
        parts = {
            part: [value for value in profile.values if value.strip().lower() in words]
            for part, words in SPLIT_WORDS.items()
        }
        if SPLIT_NAMES & set(profile.words) and profile.num_distinct in (2, 3) and parts["train"]:
            if profile.num_distinct == 2 and not parts["test"]:  # 0 and 1: 1 is the test
                parts = {**parts, "test": parts["validation"], "validation": []}
            if parts["test"] and sum(map(len, parts.values())) == profile.num_distinct:
                marked: dict[str, Any] = {"kind": "column", "column": name}
                marked |= {part: values for part, values in parts.items() if values}
                return marked, name, f"rows are marked in column {name!r}"
    names = [wishes.time] if wishes.time is not None else list(profiles)
    for name in names:
        times = times_in(profiles[name], asked=name == wishes.time) if name in profiles else None
        if times is not None and not times.format and not np.isnan(times.numbers).any():
            section = {"kind": "last-of-each", "group": query, "order": name}
            return section, name, f"the last pair of each query, by {name!r}, is held out"
    return {"kind": "hash"}, "", "at random"
