import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import DataError, WriteError
from outsize.metrics import (
    RankingMetrics,
    measure_run,
    read_qrels,
    read_run,
    write_qrels,
    write_run,
)

WORDS = st.text("abcäß-0%", min_size=1, max_size=4)
SCORES = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(WORDS, st.dictionaries(WORDS, SCORES, min_size=1), min_size=1))
def test_a_run_is_read_in_the_order_in_which_it_was_written(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("run") / "run.txt"
    written = [
        (query, sorted(items.items(), key=lambda pair: -pair[1])) for query, items in run.items()
    ]
    assert write_run(path, written) == sum(map(len, run.values()))
    found = list(read_run(path))
    assert [(q, [item for item, _ in r]) for q, r in found] == [
        (q, [item for item, _ in r]) for q, r in written
    ]
    for (_, before), (_, after) in zip(written, found, strict=True):
        for (_, score), (_, kept) in zip(before, after, strict=True):
            assert kept == pytest.approx(score, rel=1e-5, abs=1e-30)


def test_equal_scores_are_read_in_reverse_alphabetical_order_as_trec_eval_does(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text("1 Q0 a 1 0.5 x\n1 Q0 c 2 0.5 x\n1 Q0 b 3 0.7 x\n\n2 Q0 a 1 0 x\n")
    assert list(read_run(path)) == [
        ("1", [("b", 0.7), ("c", 0.5), ("a", 0.5)]),
        ("2", [("a", 0.0)]),
    ]


def test_scores_that_are_equal_as_float32_are_equal_as_in_trec_eval(tmp_path):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="needs ir-measures, of the dev extra")
    run = {"a": 0.500000002, "c": 0.5, "b": 0.500000001, "d": 0.4, "e": 1e300, "f": 1e299}
    path = tmp_path / "run.txt"
    path.write_text("".join(f"1 Q0 {item} 0 {score!r} x\n" for item, score in run.items()))
    ((_, ranking),) = read_run(path)
    assert [item for item, _ in ranking] == ["f", "e", "c", "b", "a", "d"]
    assert dict(ranking) == run
    for place, (item, _) in enumerate(ranking, 1):
        theirs = pytrec_eval.RelevanceEvaluator({"1": {item: 1}}, {"recip_rank"})
        assert theirs.evaluate({"1": run})["1"]["recip_rank"] == 1 / place


def test_judgements_are_read_as_they_were_written(tmp_path):
    judgements = {"q1": {"d1": 3, "d2": 0}, "q2": {"d9": -1}}
    assert write_qrels(tmp_path / "qrels.txt", judgements) == 3
    assert read_qrels(tmp_path / "qrels.txt") == judgements


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1 Q0 b 2 0.5", "5 columns where `query Q0 item rank score tag` belongs"),
        ("1 Q0 b 2 high x", "the score 'high' is not a finite number"),
        ("1 Q0 b 2 nan x", "the score 'nan' is not a finite number"),
        ("1 Q0 a 2 0.5 x", "item 'a' again for its query"),
        ("0 Q0 a 2 0.5 x", "query '0' again, after another one"),
    ],
)
def test_a_malformed_line_of_a_run_is_named(tmp_path, line, what):
    path = tmp_path / "run.txt"
    path.write_text(f"0 Q0 a 1 0.7 x\n1 Q0 a 1 0.7 x\n{line}\n")
    with pytest.raises(DataError) as caught:
        list(read_run(path))
    assert str(caught.value) == f"{path} line 3: {what}"


@pytest.mark.parametrize("line", ["1 0 a high", "1 0 a", "1 0 d 1"])
def test_a_malformed_line_of_judgements_is_named(tmp_path, line):
    path = tmp_path / "qrels.txt"
    path.write_text(f"1 0 d 1\n{line}\n")
    with pytest.raises(DataError, match="line 2: "):
        read_qrels(path)
    path.write_bytes(b"1 0 d 1\n1 0 \xff 1\n")
    with pytest.raises(DataError, match="line 2: it is not UTF-8"):
        read_qrels(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_qrels(tmp_path / "none")


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "run.txt"
    write_run(path, [("1", [("a", 1.0)])])
    before = path.read_bytes()
    for query, item, score in [("1", "a b", 1.0), ("", "a", 1.0), ("1", "a", math.nan)]:
        with pytest.raises(DataError):
            write_run(path, [("0", [("a", 1.0)]), (query, [(item, score)])])
    for folder in (tmp_path, Path(), Path("/")):
        with pytest.raises(WriteError, match="it is a folder; name a file"):
            write_run(folder, [("1", [("a", 1.0)])])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_query_without_a_ranking_counts_as_0_and_one_without_judgements_not_at_all():
    found = measure_run(
        [("1", [("a", 1.0)]), ("unknown", [("a", 1.0)])],
        {"1": {"a": 1}, "2": {"a": 2}, "3": {"a": 0}},
        RankingMetrics((1,), (1,), (1,), map_at=(1,)),
    )
    assert found == {"recall@1": 0.5, "ndcg@1": 0.5, "mrr@1": 0.5, "map@1": 0.5, "num_queries": 2}


def graded_run(num_queries=300, num_items=400, seed=3):
    """Rankings whose scores follow the grades and often tie, with judged and unjudged items."""
    chance = random.Random(seed)
    judgements, rankings = {}, []
    for query in range(num_queries):
        items = [f"d{i}" for i in chance.sample(range(num_items), 120)]
        grades = {item: chance.choice([0, 0, 1, 1, 2, 3]) for item in items[:40]}
        judgements[f"q{query}"] = grades | {"d-never-found": 2, items[0]: 1}
        scores = {item: grades.get(item, 0) + 0.5 * chance.randrange(9) for item in items}
        rankings.append((f"q{query}", list(scores.items())))
    return rankings, judgements


@pytest.mark.parametrize("min_grade", [1, 2])
def test_every_metric_equals_that_of_trec_eval(tmp_path, min_grade):
    ir_measures = pytest.importorskip("ir_measures", reason="needs ir-measures, of the dev extra")
    from ir_measures import AP, RR, R, Success, nDCG

    rankings, judgements = graded_run()
    run = {query: dict(items) for query, items in rankings}
    path = tmp_path / "run.txt"
    path.write_text("".join(f"{q} Q0 {d} 0 {s!r} t\n" for q, items in rankings for d, s in items))
    cuts = (1, 5, 10, 100)
    metrics = RankingMetrics(cuts, cuts, cuts, cuts, map_at=cuts, min_grade=min_grade)
    ours = measure_run(read_run(path), judgements, metrics)
    theirs = {"recall": R, "mrr": RR, "hit": Success, "map": AP}
    theirs = {name: kind(rel=min_grade) for name, kind in theirs.items()} | {"ndcg": nDCG}
    names = {theirs[name] @ k: f"{name}@{k}" for name in theirs for k in cuts}
    assert ours.pop("num_queries") == len(judgements)
    write_run(path, ((query, items) for query, items in read_run(path)))
    again = {}
    for row in ir_measures.read_trec_run(str(path)):
        again.setdefault(row.query_id, {})[row.doc_id] = row.score
    found = ir_measures.calc_aggregate(list(names), judgements, again)
    assert ours == {
        names[measure]: pytest.approx(value, abs=1e-12) for measure, value in found.items()
    }
    if min_grade == 1:  # reciprocal ranks of higher grades are not those of trec_eval in ties
        assert ir_measures.calc_aggregate(list(names), judgements, run) == found


def test_graded_metrics_are_what_trec_eval_gave():
    """Values of pytrec-eval-terrier 0.5.11, called by ir-measures 0.4.3, for where it is absent."""
    rankings, judgements = graded_run(num_queries=20, seed=5)
    ordered = [
        (q, sorted(items, key=lambda pair: (pair[1], pair[0]), reverse=True))
        for q, items in rankings
    ]
    found = measure_run(
        ordered, judgements, RankingMetrics((10,), (10, 100), (10,), (1,), map_at=(100,))
    )
    expected = {
        "recall@10": 0.34648341462537796,
        "ndcg@10": 0.8214123956800682,
        "ndcg@100": 0.8661934077470101,
        "mrr@10": 1.0,
        "hit@1": 1.0,
        "map@100": 0.6448648846148908,
        "num_queries": 20,
    }
    assert found == pytest.approx(expected, abs=1e-12)
