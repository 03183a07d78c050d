"""Every command of README, docs and CONTRIBUTING is run, page by page, from top to bottom."""

import csv
import random
import re

import processes
import pytest
from written_commands import (
    NAMES,
    PAGES,
    REPOSITORY,
    Shell,
    copy_examples,
    fenced,
    is_command,
    lines_of,
)

import outsize
from outsize.cli import COMMANDS
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, to_toml

RUN = {
    "data": {"num_train": 600, "num_validation": 200, "num_test": 200, "largest_vocabulary": 100,
             "num_categorical": 4},
    "embeddings": {"dim": 4, "store": "sharded", "cache": {"share": 0.2}},
    "train": {"batch_size": 64, "epochs": 1, "device": "cpu"},
}  # fmt: skip


def with_commands(page):
    return [block for language, block in fenced(page) if language == "bash"]


def write_rows(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def a_file_of_clicks(folder):
    draw = random.Random(0)
    rows = [(draw.choice(["Rome", "Oslo", "Bern"]), draw.randrange(100, 999)) for _ in range(800)]
    clicked = [int(draw.random() < (0.6 if city == "Rome" else 0.2)) for city, _ in rows]
    lines = [(label, *row) for label, row in zip(clicked, rows, strict=True)]
    write_rows(folder / "clicks.csv", ("clicked", "city", "price"), *lines)
    (folder / "run.toml").unlink()  # `outsize init` writes it


def two_runs(folder):
    for name, method in (("click", "full"), ("cce", "cce")):
        tables = {"kind": "tables", "method": method, "dim": 4}
        tables |= {} if method == "full" else {"max_params": 100}
        config = decode(RunConfig, {**RUN, "embeddings": tables}, name)
        outsize.train(config, folder / "runs" / name, quiet=True)


def loans_and_films(folder):
    """The loans of the page's first block, new and labelled ones, and a run on films."""
    (first, *_) = [block for language, block in fenced("docs/predict.md") if language == "python"]
    done = processes.run("-c", first, cwd=folder)
    assert done.returncode == 0, done.stderr
    loans = list(csv.reader((folder / "loans.csv").read_text().splitlines()))
    write_rows(folder / "labelled.csv", *loans[:50])
    write_rows(folder / "new.csv", *[row[1:] for row in loans[:50]])
    draw = random.Random(0)
    pairs = sorted({(f"u{draw.randrange(40)}", f"film {draw.randrange(30)}") for _ in range(600)})
    draw.shuffle(pairs)
    head = ("user_id", "film")
    write_rows(folder / "films.csv", head, *pairs)
    write_rows(folder / "train.csv", head, *pairs[:400])
    write_rows(folder / "seen.csv", head, *pairs[:400])
    write_rows(folder / "test.csv", head, *pairs[400:])
    write_rows(folder / "users.csv", ("user_id",), ("u1",), ("u2",))
    tree = {
        "data": {"kind": "interactions", "path": [str(folder / "films.csv")], "query": "user_id",
                 "item": "film"},
        "model": {"kind": "two-tower", "dim": 4}, "embeddings": {"dim": 4},
        "train": {"batch_size": 64, "epochs": 1},
    }  # fmt: skip
    outsize.train(decode(RunConfig, tree, "films"), folder / "runs" / "films", quiet=True)


def graph_models(folder):
    for name in ("nodes", "links"):
        tree = {
            "data": {"kind": "synthetic-graph", "num_nodes": 300, "num_classes": 4,
                     "links": {"validation": 0.1, "test": 0.1}},
            "model": {"kind": "graphsage", "hidden": 8}, "embeddings": {"dim": 8},
            "graph": {"predict": name, "fan_out": [4, 4]}, "train": {"epochs": 1},
        }  # fmt: skip
        if name == "nodes":
            del tree["data"]["links"]
        else:
            tree["negatives"] = {"kind": "in-batch"}
        outsize.train(decode(RunConfig, tree, name), folder / "runs" / name, quiet=True)
    outsize.export_run(folder / "runs" / "nodes", folder / "graph-model")
    outsize.export_run(folder / "runs" / "links", folder / "link-model")
    write_rows(folder / "nodes.csv", ("node",), (3,), (7,))
    some, other, *_ = outsize.load_exported(folder / "graph-model").classes
    write_rows(folder / "labelled.csv", ("node", "label"), (3, some), (7, other), (9, other))
    links = [("source", "target"), (3, 7), (9, 11), (20, 30)]
    for name in ("pairs", "links"):
        write_rows(folder / f"{name}.csv", *links)
    write_rows(folder / "known.csv", links[0], (3, 8))
    write_rows(folder / "sources.csv", ("source",), (3,), (9,))


def a_module(folder):
    blocks = fenced("docs/extending.md")
    code = [block for language, block in blocks if language == "python"]
    (folder / "my_module.py").write_text("\n\n".join(code))
    clicks, _ = [block for language, block in blocks if language == "toml"]
    (folder / "clicks.toml").write_text(clicks)


PREPARED = {  # page → what its reader has already
    "README.md": a_file_of_clicks,
    "docs/index.md": a_file_of_clicks,
    "docs/init.md": a_file_of_clicks,
    "docs/reports.md": two_runs,
    "docs/predict.md": loans_and_films,
    "docs/graphs.md": graph_models,
    "docs/extending.md": a_module,
}


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_in_blocks_of_bash_and_nothing_else_is(page):
    for language, block in fenced(page):
        lines = lines_of(block)
        if language == "bash":
            assert all(map(is_command, lines)), f"not one of {NAMES}: {block}"
        elif language not in ("python", "toml"):
            assert not any(map(is_command, lines)), f"say bash, and it is run: {block}"


def test_a_command_in_a_line_of_text_is_one_that_exists():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", (REPOSITORY / page).read_text(), flags=re.DOTALL)
        named = set(re.findall(r"`outsize ([a-z]+)", text))
        assert named <= set(COMMANDS), page


@pytest.mark.parametrize("page", [page for page in PAGES if with_commands(page)])
def test_the_commands_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    copy_examples(tmp_path)
    (tmp_path / "run.toml").write_text(to_toml(RUN))
    monkeypatch.chdir(tmp_path)
    PREPARED.get(page, lambda folder: None)(tmp_path)
    shell = Shell(tmp_path)
    try:
        lines = [line for block in with_commands(page) for line in lines_of(block)]
        for line in dict.fromkeys(lines):  # once each
            shell.run(line)
    finally:
        shell.close()
