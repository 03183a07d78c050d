"""Real graphs, as the section `[data]` of run files: nodes have ids only, edges lead both ways.

Labelled nodes are divided 60 : 20 : 20 at random, or as the data set says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SHARES = {"validation": 0.2, "test": 0.2}
_LEAST_PAPERS = 500  # a venue with fewer is no class


def _npz(name: str) -> dict[str, Any]:
    return {"kind": "npz", "path": f"{name}.npz", "attributes": False, **_SHARES}


GRAPHS: Mapping[str, Mapping[str, Any]] = {
    "cora": _npz("cora"),
    "citeseer": _npz("citeseer"),
    "tolokers": _npz("tolokers"),
    "musae_facebook": _npz("musae_facebook"),
    "musae_github": _npz("musae_github"),
    "debian_trixie": {
        "kind": "edges",
        "path": ["debian_trixie_edges.parquet"],
        "source": "src",
        "target": "dst",
        "nodes": {"path": ["debian_trixie_nodes.parquet"], "id": "id", "label": "section"},
        "split": {"kind": "hash", **_SHARES},
    },
    "acl": {
        "kind": "edges",
        "relations": {
            "writes": {
                "path": ["acl_paper_author_edges.parquet"],
                "source": "author",
                "target": "paper",
            }
        },
        "node_types": {
            "paper": {
                "path": ["acl_papers.parquet"],
                "id": "id",
                "label": "venue",
                "min_class_size": _LEAST_PAPERS,
            }
        },
        "split": {"kind": "hash", **_SHARES},
    },
}


def graph_section(name: str, folder: str) -> dict[str, Any]:
    """The section `[data]` of a graph whose files are in a folder."""
    section = _in_folder(GRAPHS[name], Path(folder))
    assert isinstance(section, dict)
    return section


def _in_folder(value: Any, folder: Path, key: str = "") -> Any:
    """A section with its paths below a folder."""
    if key == "path":
        return [str(folder / path) for path in value] if isinstance(value, list) else (
            str(folder / value)
        )  # fmt: skip
    if isinstance(value, Mapping):
        return {name: _in_folder(part, folder, name) for name, part in value.items()}
    return value
