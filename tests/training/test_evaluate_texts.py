"""Text models are measured on their own splits, by grades where there are some."""

import json
import random

import pytest
from text_runs import BASE, make_text_config

import outsize
import outsize.training.report
from outsize.cli import main
from outsize.metrics import RankingMetrics, measure_run, read_run
from outsize.training.config import RunConfig
from outsize.training.evaluate import evaluate
from outsize.training.strict_toml import decode
from outsize.training.tasks import RetrievalTask


def write_graded(path, num_queries=120):
    draw = random.Random(0)
    lines = []
    for number in range(num_queries):
        concept = draw.randrange(12)
        for grade in (0, 1, 2, 3):
            item = " ".join([f"tell{concept}"] * grade + [f"filler{number}", f"more{grade}"])
            row = {"query": f"ask{concept} word{number}", "item": item}
            lines.append(json.dumps(row | {"name": f"{number} {grade}", "grade": grade}))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_text_run_is_measured_by_grades_and_writes_its_rankings(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)
    config = make_text_config(
        write_graded(tmp_path / "pairs.jsonl"), "data.grade=grade", "retrieval.map_at=[10]",
        "train.epochs=1",
    )  # fmt: skip
    result = outsize.train(config, tmp_path / "run", quiet=True)
    path = tmp_path / "found.run"
    with pytest.raises(SystemExit) as left:
        main(["evaluate", str(result.out), "--run-file", str(path), "--depth", "30", "--json"])
    assert left.value.code == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["metrics"] == pytest.approx(
        {name: value for name, value in result.test.items() if name != "step"}, rel=1e-5
    )
    data = RetrievalTask(config).data
    relevant, grades = data.relevant("test"), data.grades("test").tolist()
    queries, items = (side.ids.to_pylist() for side in (data.texts.queries, data.texts.items))
    judged = {}
    for query, item, grade in zip(
        *(part.tolist() for part in relevant.pairs()), grades, strict=True
    ):
        name = queries[query].replace(" ", "%20")
        judged.setdefault(name, {})[items[item].replace(" ", "%20")] = grade
    assert {grade for line in judged.values() for grade in line.values()} == {1, 2, 3}
    found = measure_run(read_run(path), judged, RankingMetrics(map_at=(10,)))
    assert found == pytest.approx({name: summary["metrics"][name] for name in found}, rel=1e-5)
    binary = {query: dict.fromkeys(line, 1) for query, line in judged.items()}
    alike = measure_run(read_run(path), binary, RankingMetrics(map_at=(10,)))
    assert alike["ndcg@10"] != pytest.approx(found["ndcg@10"], rel=1e-3)
    assert alike["map@10"] == pytest.approx(found["map@10"])


def test_grades_below_the_least_count_for_ndcg_only(tmp_path, monkeypatch):
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)
    numbers = range(40)
    names = [f"ask{number}" for number in numbers]
    lines = {
        "collection.tsv": [f"{4 * n + g}\ttell{n} more{g}" for n in numbers for g in range(4)],
        "queries.tsv": [f"{n}\t{name}" for n, name in enumerate(names)],
        "train.tsv": [f"{n}\t0\t{4 * n + 3}\t1" for n in numbers[:30]],
        "test.txt": [f"{n} 0 {4 * n + g} {g}" for n in numbers[30:] for g in range(4)],
    }
    for name, content in lines.items():
        (tmp_path / name).write_text("\n".join(content) + "\n")
    tree = {
        **BASE,
        "data": {"kind": "ms-marco", "path": str(tmp_path), "queries": ["queries.tsv"],
                 "train": "train.tsv", "validation": "", "validation_share": 0.2,
                 "test": "test.txt", "min_grade": 2},
    }  # fmt: skip
    config = decode(RunConfig, tree, "test")
    found = outsize.train(config, tmp_path / "run", quiet=True).test
    path = tmp_path / "found.run"
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--run-file", str(path), "--depth", "160"])
    judged = {str(n): {str(4 * n + g): g for g in range(4)} for n in numbers[30:]}
    expected = measure_run(read_run(path), judged, RankingMetrics(min_grade=2))
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    anyone = measure_run(read_run(path), judged, RankingMetrics())
    assert anyone["ndcg@10"] == expected["ndcg@10"]
    assert anyone["recall@20"] != pytest.approx(expected["recall@20"])
    relevant = RetrievalTask(config).data.relevant("test")
    assert len(relevant.values) == 30  # those of grade 1 are not negatives of the loss


def test_what_a_text_run_is_not_measured_on_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(outsize.training.report, "write_report", lambda *given: None)
    file = write_graded(tmp_path / "pairs.jsonl", 40)
    config = make_text_config(file, "train.epochs=1", "train.steps=1")
    result = outsize.train(config, tmp_path / "run", quiet=True)
    with pytest.raises(outsize.OutsizeError, match="leave --exclude out"):
        evaluate(result.out, exclude=[file])
    with pytest.raises(outsize.OutsizeError, match="name the folder of its run, and no file"):
        evaluate(result.out, file)
