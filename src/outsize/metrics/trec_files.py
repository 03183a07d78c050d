"""Run files and relevance judgements (qrels) in the formats of TREC.

A line of a run is `query Q0 item rank score tag`, one of judgements `query iteration item grade`,
separated by white space. As in trec_eval, the order of a query's items is that of their scores: the
rank column is ignored, and of scores that are equal as float32 the item that is later in the
alphabet comes first (compared as UTF-8 bytes). `write_run` therefore writes scores that decrease
strictly, and every reader finds the order that was written.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from outsize.errors import DataError
from outsize.files import reason_of, whole_file
from outsize.metrics.ranking import RankingMetrics

Ranking = Sequence[tuple[str, float]]
"""Items with their scores."""
Judgements = Mapping[str, Mapping[str, int]]
"""The grade of each judged item, by query."""
_QUERIES_PER_CHUNK = 256


def write_run(path: Path, rankings: Iterable[tuple[str, Ranking]], tag: str = "outsize") -> int:
    """Write a run atomically, query by query, and return the number of its lines.

    Args:
        path: The file; replaced if it exists.
        rankings: Queries with their items, best first. A score that is not below the one before it
            is written as the next smaller float32.
        tag: The name of the run.
    """
    with writing_run(path, tag) as add:
        return sum(add(query, ranking) for query, ranking in rankings)


@contextlib.contextmanager
def writing_run(
    path: Path, tag: str = "outsize"
) -> Iterator[Callable[[str, Iterable[tuple[str, float]]], int]]:
    """A function that adds a query and its ranking to a run, and returns the lines it wrote.

    The file appears at the end, whole; an error leaves the old one. Arguments as of `write_run`.
    """
    name = _word(tag, "tag")
    with whole_file(path) as file:

        def add(query: str, ranking: Iterable[tuple[str, float]]) -> int:
            lines = [line.encode() for line in _run_lines(query, ranking, name)]
            file.writelines(lines)
            return len(lines)

        yield add


def write_qrels(path: Path, judgements: Judgements) -> int:
    """Write relevance judgements atomically, and return the number of lines."""
    count = 0
    with whole_file(path) as file:
        for query, grades in judgements.items():
            for item, grade in grades.items():
                line = f"{_word(query, 'query')} 0 {_word(item, 'item')} {grade:d}\n"
                file.write(line.encode())
                count += 1
    return count


def read_run(path: Path) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The rankings of a run, best first, one query in memory at a time.

    Lines of a query must follow each other.

    Raises:
        DataError: A line is malformed, or names an item of its query again.
    """
    done: set[str] = set()
    query, items = "", dict[str, float]()
    for number, words in _lines(path, 6, "query Q0 item rank score tag"):
        if words[0] != query:
            if items:
                done.add(query)
                yield query, _ordered(items)
            query, items = words[0], {}
            if query in done:
                raise _malformed(path, number, f"query {query!r:.60} again, after another one")
        if words[2] in items:
            raise _malformed(path, number, f"item {words[2]!r:.60} again for its query")
        items[words[2]] = _number(path, number, words[4])
    if items:
        yield query, _ordered(items)


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """The relevance judgements of a file: grades by query and item.

    Raises:
        DataError: A line is malformed, or judges an item of its query again.
    """
    found: dict[str, dict[str, int]] = {}
    for number, (query, _, item, grade) in _lines(path, 4, "query iteration item grade"):
        grades = found.setdefault(query, {})
        if item in grades:
            raise _malformed(path, number, f"item {item!r:.60} again for its query")
        try:
            grades[item] = int(grade)
        except ValueError:
            raise _malformed(path, number, f"the grade {grade!r:.60} is not an integer") from None
    return found


def measure_run(
    rankings: Iterable[tuple[str, Ranking]], judgements: Judgements, metrics: RankingMetrics
) -> dict[str, float | None]:
    """Measure rankings against judgements, some hundred queries in memory at a time.

    Every query with a relevant item counts; one that has no ranking counts as 0. Rankings of
    queries without judgements are ignored.

    Args:
        rankings: Queries with their items, best first, as `read_run` returns them.
        judgements: As `read_qrels` returns them.
        metrics: What to measure, without anything in it yet.
    """

    def judged() -> Iterator[tuple[str, Ranking]]:
        missing = set(judgements)
        for query, ranking in rankings:
            if query in missing:
                missing.discard(query)
                yield query, ranking
        yield from ((query, ()) for query in missing)

    pairs = judged()
    while chunk := list(islice(pairs, _QUERIES_PER_CHUNK)):
        _add(chunk, judgements, metrics)
    return metrics.result()


def _add(
    chunk: Sequence[tuple[str, Ranking]], judgements: Judgements, metrics: RankingMetrics
) -> None:
    """Add the rankings of some queries, with items numbered per query."""
    ranked = torch.full((len(chunk), metrics.num_places), -1, dtype=torch.int64)
    values: list[int] = []
    grades: list[int] = []
    offsets: list[int] = []
    for line, (query, ranking) in enumerate(chunk):
        judged = judgements[query]
        numbers = {item: number for number, item in enumerate(judged)}
        offsets.append(len(values))
        values += range(len(judged))
        grades += judged.values()
        first = ranking[: metrics.num_places]
        rows = [numbers.get(item, len(judged) + place) for place, (item, _) in enumerate(first)]
        ranked[line, : len(rows)] = torch.tensor(rows, dtype=torch.int64)
    int64 = torch.int64
    metrics.add(
        ranked,
        torch.tensor(values, dtype=int64),
        torch.tensor(offsets, dtype=int64),
        torch.tensor(grades, dtype=int64),
    )


def _run_lines(query: str, ranking: Iterable[tuple[str, float]], tag: str) -> Iterator[str]:
    first, last = _word(query, "query"), np.float32(np.inf)
    for place, (item, score) in enumerate(ranking, 1):
        if not math.isfinite(score):
            raise DataError(f"query {query!r:.60}: the score of {item!r:.60} is {score}")
        last = min(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
        yield f"{first} Q0 {_word(item, 'item')} {place} {float(last)!r} {tag}\n"


def _word(text: str, kind: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise DataError(
            f"the {kind} {text!r:.60} is empty or has white space, which separates the columns of "
            "TREC files: use ids without it"
        )
    return text


def _lines(path: Path, num_words: int, form: str) -> Iterator[tuple[int, list[str]]]:
    """The numbered lines of a file, as words; empty lines are left out."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    words = line.decode().split()
                except UnicodeDecodeError:
                    raise _malformed(path, number, "it is not UTF-8") from None
                if words and len(words) != num_words:
                    raise _malformed(path, number, f"{len(words)} columns where `{form}` belongs")
                if words:
                    yield number, words
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason_of(error)}") from None


def _number(path: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise _malformed(path, number, f"the score {text!r:.60} is not a finite number")
    return score


def _malformed(path: Path, number: int, what: str) -> DataError:
    return DataError(f"{path} line {number:,}: {what}")


def _ordered(items: Mapping[str, float]) -> list[tuple[str, float]]:
    with np.errstate(over="ignore"):
        rounded = np.array(list(items.values())).astype(np.float32).tolist()
    keys = zip(rounded, (item.encode() for item in items), items.items(), strict=True)
    return [pair for _, _, pair in sorted(keys, reverse=True)]
