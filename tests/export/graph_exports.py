"""Small runs on files of a graph: papers with topics, citations and authors."""

import random
from unittest.mock import patch

import outsize
from outsize.training.config import RunConfig
from outsize.training.strict_toml import decode, override

TOPICS = ("biology", "logic", "music")
PAPERS = {
    "data": {
        "kind": "edges",
        "node_types": {
            "paper": {"id": "paper_id", "label": "topic", "multi_valued": ["words"], "path": []}
        },
        "relations": {
            "cites": {"source": "paper", "target": "paper", "source_column": "from",
                      "target_column": "to", "path": []},
            "writes": {"source": "author", "target": "paper", "path": []},
        },
        "split": {"validation": 0.2, "test": 0.3},
    },
    "model": {"kind": "graphsage", "hidden": 8},
    "graph": {"fan_out": [4, 4]},
    "embeddings": {"dim": 6, "optimizer": {"learning_rate": 0.1}},
    "optimizer": {"learning_rate": 0.02},
    "train": {"batch_size": 16, "epochs": 4, "device": "cpu"},
}  # fmt: skip


def write_files(folder):
    """Files of 60 papers, most of whose edges are within a topic; half have their labels."""
    draw = random.Random(0)
    papers, cites, writes = ["paper_id,topic,words"], ["from,to"], ["author,paper"]
    for number in range(60):
        words = "|".join(f"w{draw.randrange(3) * 3 + number % 3}" for _ in range(number % 4))
        papers.append(f"p{number},{TOPICS[number % 3]},{words}")
        for _ in range(3 if number < 57 else 0):  # the last ones cite nothing
            other = draw.randrange(19) * 3 + number % 3
            cites.append(f"p{number},p{other}")
        writes.append(f"{100 + number % 3 * 5 + draw.randrange(5)},p{number}")
    for name, lines in (("papers", papers), ("cites", cites), ("writes", writes)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def papers_config(folder, *settings):
    """The run of `PAPERS` on files of a folder."""
    paths = {
        "node_types.paper": "papers",
        "relations.cites": "cites",
        "relations.writes": "writes",
    }
    named = [f"data.{key}.path=['{folder / name}.csv']" for key, name in paths.items()]
    return decode(RunConfig, override(PAPERS, [*named, *settings]), "test")


def train(config, folder):
    """Train without drawing a report, which takes longer than the run."""
    with patch("outsize.training.report.write_report", lambda *parts: None):
        return outsize.train(config, folder, quiet=True)
