"""BEIR folders and MS MARCO: corpora, queries and judgements in files of their own."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from outsize.data import BeirConfig, MsMarcoConfig
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.texts import judged_files
from outsize.data.texts.judged_files import JudgedPairs
from outsize.data.texts.text_pairs import Texts
from outsize.errors import ConfigError, DataError

CORPUS = [{"_id": f"d{n}", "title": f"Title {n}", "text": f"text {n}"} for n in range(8)]
QUERIES = [{"_id": f"q{n}", "text": f"question {n}"} for n in range(8)]
QRELS = {"train": [(n, n, 1) for n in range(4)], "dev": [(4, 4, 1)], "test": [(5, 5, 2), (5, 6, 1)]}


def write_beir(folder, corpus=CORPUS, queries=QUERIES, qrels=QRELS):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for split, judged in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"q{q}\td{d}\t{s}" for q, d, s in judged)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def ids_of(pairs, split):
    return [
        (pairs.queries.ids[int(q)].as_py(), pairs.items.ids[int(i)].as_py())
        for q, i in zip(*pairs.pairs[split], strict=True)
    ]


def test_a_beir_folder_has_graded_splits(tmp_path):
    pairs = BeirConfig(str(write_beir(tmp_path))).read()
    assert ids_of(pairs, "train") == [(f"q{n}", f"d{n}") for n in range(4)]
    assert ids_of(pairs, "validation") == [("q4", "d4")]
    assert ids_of(pairs, "test") == [("q5", "d5"), ("q5", "d6")]
    assert pairs.grades["test"].tolist() == [2, 1]
    assert pairs.is_graded
    assert pairs.items.texts[3].as_py() == "Title 3 text 3"
    assert len(pairs.items) == 8  # the whole corpus, judged or not
    assert pairs.notes == ("2 of 8 queries have no relevant item: left out",)


def test_compressed_files_are_read(tmp_path):
    folder = write_beir(tmp_path)
    for path in (folder / "corpus.jsonl", folder / "qrels" / "train.tsv"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert len(ids_of(BeirConfig(str(folder)).read(), "train")) == 4


def test_without_dev_validation_queries_are_taken_from_training(tmp_path):
    qrels = {"train": [(n % 8, n % 8, 1) for n in range(8)], "test": [(5, 6, 1)]}
    config = BeirConfig(str(write_beir(tmp_path, qrels=qrels)), validation=0.5)
    pairs = config.read()
    taken = ids_of(pairs, "validation")
    assert 0 < len(taken) < 8
    assert sorted(taken + ids_of(pairs, "train")) == [(f"q{n}", f"d{n}") for n in range(8)]
    assert ids_of(config.read(), "validation") == taken


def test_titles_may_be_absent_and_texts_empty(tmp_path):
    corpus = [{"_id": row["_id"], "text": row["text"]} for row in CORPUS]
    corpus[6] = {"_id": "d6", "text": "", "title": "only a title"}
    pairs = BeirConfig(str(write_beir(tmp_path, corpus))).read()
    assert pairs.items.texts[0].as_py() == "text 0"
    assert pairs.items.texts[6].as_py() == "only a title"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"corpus": CORPUS[1:]}, r"an item that is not in the corpus \(first: .*'d0'\)"),
        ({"queries": QUERIES[1:]}, r"a query that has no text \(first: .*'q0'\)"),
        (
            {"qrels": {**QRELS, "test": [*QRELS["test"], (5, 7, "x")]}},
            r"a grade that is not a whole number \(first: .*line 4: grade 'x'\)",
        ),
        ({"corpus": [*CORPUS, {"_id": "d9", "text": " "}]}, r"an empty item \(first: .*line 9\)"),
        ({"queries": [*QUERIES, {"_id": "q9", "text": None}]}, "an empty query"),
    ],
)
def test_what_does_not_fit_together_is_counted_and_limited(tmp_path, damage, words):
    folder = write_beir(tmp_path, **damage)
    with pytest.raises(DataError, match=words):
        BeirConfig(str(folder)).read()
    pairs = BeirConfig(str(folder), max_bad_rows=0.5).read()
    assert any("malformed" in note for note in pairs.notes)
    assert ids_of(pairs, "test") == [("q5", "d5"), ("q5", "d6")]


def test_what_is_not_relevant_may_be_absent_from_the_corpus(tmp_path):
    qrels = {**QRELS, "test": [*QRELS["test"], (5, 77, 0), (5, 7, 0)]}
    pairs = BeirConfig(str(write_beir(tmp_path, qrels=qrels))).read()
    assert ids_of(pairs, "test") == [("q5", "d5"), ("q5", "d6")]


def test_folders_that_cannot_be_trained_on_are_refused(tmp_path):
    folder = write_beir(tmp_path / "a", qrels={"test": QRELS["test"]})
    with pytest.raises(DataError, match=r"no qrels/train.tsv, so there is nothing to learn from"):
        BeirConfig(str(folder)).read()
    folder = write_beir(tmp_path / "b", [*CORPUS, {**CORPUS[0], "text": "other"}])
    with pytest.raises(DataError, match=r"corpus.jsonl: two different texts have the item id 'd0'"):
        BeirConfig(str(folder)).read()
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no corpus.jsonl, nor corpus.jsonl.gz"):
        BeirConfig(str(folder)).read()
    with pytest.raises(DataError, match=r"no such folder"):
        BeirConfig(str(tmp_path / "none")).read()
    with pytest.raises(ConfigError, match=r"validation must be between"):
        BeirConfig("a", validation=0.0)


def write_ms_marco(folder):
    folder.mkdir(exist_ok=True)
    lines = [f'{n}\tpassage "{n}", not quoted' for n in range(20)]
    (folder / "collection.tsv").write_text("\n".join(lines) + "\n")
    for name, numbers in (("train", range(100, 106)), ("dev.small", [106]), ("trec", [107])):
        lines = [f"{n}\tquery {n}" for n in numbers]
        (folder / f"queries.{name}.tsv").write_text("\n".join(lines) + "\n")
    lines = [f"{100 + n}\t0\t{n}\t1" for n in range(6)]
    (folder / "qrels.train.tsv").write_text("\n".join(lines) + "\n")
    (folder / "qrels.dev.small.tsv").write_text("106\t0\t7\t1\n")
    (folder / "2019qrels-pass.txt").write_text("107 Q0 8 3\n107 Q0 9 1\n107 Q0 10 0\n107 Q0 11 2\n")
    lines = [f"{100 + n}\t{n}\t{19 - k}" for n in range(6) for k in range(3)]
    (folder / "qidpidtriples.tsv").write_text("\n".join(lines) + "\n")
    return folder


TREC = {
    "queries": ("queries.train.tsv", "queries.dev.small.tsv", "queries.trec.tsv"),
    "test": "2019qrels-pass.txt",
}


def test_ms_marco_is_read_with_the_grades_of_trec(tmp_path):
    folder = write_ms_marco(tmp_path)
    pairs = MsMarcoConfig(str(folder), **TREC).read()
    assert ids_of(pairs, "train") == [(str(100 + n), str(n)) for n in range(6)]
    assert ids_of(pairs, "validation") == [("106", "7")]
    assert ids_of(pairs, "test") == [("107", "8"), ("107", "9"), ("107", "11")]
    assert pairs.grades["test"].tolist() == [3, 1, 2]
    assert pairs.items.texts[3].as_py() == 'passage "3", not quoted'
    strict = MsMarcoConfig(str(folder), **TREC, min_grade=2).read()
    assert ids_of(strict, "test") == ids_of(pairs, "test")  # NDCG counts every grade
    assert strict.min_grades == {"test": 2}
    assert not pairs.min_grades
    with pytest.raises(DataError, match=r"no relevant passage of a grade of at least 4: lower"):
        MsMarcoConfig(str(folder), **TREC, min_grade=4).read()
    without_test = MsMarcoConfig(str(folder), min_grade=2).read()
    assert not without_test.min_grades  # tested on the validation set


def test_pairs_of_triples_are_read_once(tmp_path):
    folder = write_ms_marco(tmp_path)
    pairs = MsMarcoConfig(str(folder), train="qidpidtriples.tsv").read()
    assert ids_of(pairs, "train") == [(str(100 + n), str(n)) for n in range(6)]
    assert "there is no test set: the validation set is used for both" in pairs.notes


def strings(values):
    return pa.array(values, pa.large_string())


def test_repeated_pairs_are_not_held(monkeypatch):
    monkeypatch.setattr(judged_files, "_MOST_REPEATED", 10)
    texts = [
        Texts(strings([f"{side}{i}" for i in range(20)]), strings(["a"] * 20)) for side in "qd"
    ]
    judged = JudgedPairs(*texts, BadRows())
    rows = [(i * i) % 17 for i in range(3000)]
    for low in range(0, len(rows), 6):
        some = rows[low : low + 6]
        columns = {
            "query": strings([f"q{i}" for i in some]),
            "item": strings([f"d{i}" for i in some]),
            "grade": strings(["1" if i else "0" for i in some]),
        }
        judged.add("train", Path("triples"), np.arange(6), columns)
        assert judged.num_held <= 10 + 6 + 8  # the squares modulo 17 but for 0
    found = judged.assemble("triples", 0.2, 0, 0.0)
    pairs = [pair for split in ("train", "validation") for pair in found.pairs[split][1].tolist()]
    assert sorted(pairs) == sorted({i for i in rows if i})


def test_files_of_ms_marco_that_are_no_judgements_are_refused(tmp_path):
    folder = write_ms_marco(tmp_path)
    (folder / "three.tsv").write_text("".join(f"{n}\ttitle\ttext\n" for n in range(20)))
    with pytest.raises(DataError, match=r"neither four columns"):
        MsMarcoConfig(str(folder), train="collection.tsv").read()
    columns = r"20 of 20 rows .* a wrong number of columns \(first: .* line 1: 3 columns, not 2\)"
    with pytest.raises(DataError, match=columns):
        MsMarcoConfig(str(folder), collection="three.tsv").read()
    with pytest.raises(DataError, match=r"has no qrels.tsv, nor qrels.tsv.gz"):
        MsMarcoConfig(str(folder), train="qrels.tsv").read()
    with pytest.raises(ConfigError, match=r"min_grade must be >= 1"):
        MsMarcoConfig(str(folder), min_grade=0)
    with pytest.raises(ConfigError, match=r"queries must name at least one file"):
        MsMarcoConfig(str(folder), queries=())
