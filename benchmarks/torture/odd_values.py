"""Odd values for every key of every section of a run file, and small runs to try them in."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outsize.data import CLICK_DATA, RETRIEVAL_DATA
from outsize.models import CLICK_MODELS
from outsize.negatives import NEGATIVES
from outsize.tables import TABLES
from outsize.training.config import RunConfig

ODD_VALUES: tuple[Any, ...] = (
    0, -1, 1, 3, 2**31, 2**62, 2**63, 10**30, 0.5, 1e-300, 1e30, 1e300, -1e300, float("nan"),
    float("inf"), float("-inf"), True, "", " ", "x", "x" * 10_000, "ä\u2028漢\x00", "nan", [], [0],
    [-1], [2**31], [10**30], [1] * 300, ["x"], [""], [1.5, "x"], {}, {"kind": "x"}, {"a": {"b": 1}},
)  # fmt: skip
"""Values that few keys expect; nesting is tried apart, as text."""

NESTED = ("[" * 200 + "]" * 200, "[" * 5_000 + "]" * 5_000, "{a=" * 200 + "1" + "}" * 200)

_TRAIN = {"steps": 2, "batch_size": 8, "eval_batch_size": 16, "log_every": 1}
_CLICK_DATA = {
    "num_train": 40, "num_validation": 30, "num_test": 30, "num_dense": 2, "num_categorical": 3,
    "largest_vocabulary": 50,
}  # fmt: skip
_PAIRS = {"num_queries": 12, "num_items": 30, "items_per_query": 6, "latent_dim": 3,
          "num_groups": 4}  # fmt: skip
_CLICK: dict[str, Any] = {
    "data": _CLICK_DATA,
    "model": {"bottom": [4], "top": [4]},
    "embeddings": {"dim": 4},
    "train": _TRAIN,
}
_RETRIEVAL: dict[str, Any] = {
    "data": {"kind": "synthetic-interactions", **_PAIRS},
    "model": {"kind": "two-tower", "dim": 4, "hidden": [4]},
    "embeddings": {"dim": 4},
    "negatives": {"kind": "in-batch"},
    "retrieval": {"recall_at": [5], "ndcg_at": [3], "mrr_at": [3], "judge": "loss"},
    "train": _TRAIN,
}
_FILES: dict[str, dict[str, Any]] = {
    "tabular": {"path": ["clicks.csv"], "label": "label", "dense": ["price"],
                "categorical": ["user"], "multi_valued": ["tags"]},
    "criteo": {"path": ["criteo.txt"]},
    "avazu": {"path": ["avazu.csv"]},
    "movielens": {"path": "ratings.dat"},
    "interactions": {"path": ["clicks.csv"], "query": "user", "item": "item",
                     "item_features": ["tags", "price"], "multi_valued": ["tags"],
                     "numeric": ["price"]},
}  # fmt: skip


def bases() -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """Runs that work, by name, each with the sections or keys that are tried in it."""
    found: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "click": (_CLICK, ("",)),
        "retrieval": (_RETRIEVAL, ("data", "model", "retrieval", "train")),
    }
    for kind in CLICK_MODELS:
        model = {"kind": kind} | ({"hidden": [4]} if kind in _WITH_HIDDEN else {})
        pair = {"vocabulary": [9, 7], "num_dense": 0} if kind == "gmf" else {}
        if kind != "dlrm":
            found[f"model {kind}"] = (
                {**_CLICK, "model": model, "data": {**_CLICK_DATA, **pair}},
                ("model",),
            )
    for method in TABLES:
        tables = {"kind": "tables", "dim": 4, "method": method, "max_params": 120}
        if method == "full":
            del tables["max_params"]
        keys = ("embeddings",) if method == "cce" else _SIZES
        found[f"tables {method}"] = ({**_CLICK, "embeddings": tables}, keys)
    for store in ("sharded", "served"):
        embeddings = {"dim": 4, "store": store, "cache": {"share": 0.5}}
        optimizer = {"kind": "sgd"}
        found[f"store {store}"] = (
            {**_CLICK, "embeddings": embeddings, "optimizer": optimizer},
            ("embeddings", "optimizer"),
        )
    for kind in NEGATIVES:
        found[f"negatives {kind}"] = ({**_RETRIEVAL, "negatives": {"kind": kind}}, ("negatives",))
    stream = {"kind": "cache", "feed": "stream", "num_items": 9, "num_new": 3}
    found["negatives of a stream"] = ({**_RETRIEVAL, "negatives": stream}, ("negatives",))
    for kind in (*CLICK_DATA, *RETRIEVAL_DATA):
        if kind in _FILES:
            base = _RETRIEVAL if kind in RETRIEVAL_DATA else _CLICK
            found[f"data {kind}"] = ({**base, "data": {"kind": kind, **_FILES[kind]}}, ("data",))
    return found


_SECTIONS = tuple(field.name for field in dataclasses.fields(RunConfig))
_SIZES = tuple(f"embeddings.{key}" for key in ("dim", "max_params", "max_bytes", "columns"))
_WITH_HIDDEN = ("wide-deep", "deepfm", "dcn", "dcnv2")


def write_files(folder: Path) -> None:
    """The files that `bases` read, in their working folder."""
    lines = [f"{i % 2},{i % 7},u{i % 11},i{i % 13},a|b{i % 3}" for i in range(120)]
    (folder / "clicks.csv").write_text("\n".join(["label,price,user,item,tags", *lines]) + "\n")
    counts = "\t".join(str(i) for i in range(13))
    values = "\t".join(f"{i:08x}" for i in range(26))
    (folder / "criteo.txt").write_text(
        "".join(f"{i % 2}\t{counts}\t{values}\n" for i in range(140))
    )
    names = ("id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
             "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
             "C14,C15,C16,C17,C18,C19,C20,C21")  # fmt: skip
    rows = [f"{i},{i % 2},1410{21 + i // 14}{i % 14:02d}," + ",".join(["v"] * 21)
            for i in range(140)]  # fmt: skip
    (folder / "avazu.csv").write_text("\n".join([names, *rows]) + "\n")
    ratings = [f"{u}::{m}::{(u + m) % 5 + 1}::{100 * u + m}" for u in range(9) for m in range(9)]
    (folder / "ratings.dat").write_text("\n".join(ratings) + "\n")


def keys_of(kind: type, tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Every dotted key that a section may have, its sub-sections by the kinds that `tree` chose."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        key = f"{path}.{field.name}" if path else field.name
        yield key
        inner = tree.get(field.name, {})
        if not isinstance(inner, Mapping):
            continue
        if kinds := field.metadata.get("kinds"):
            if "kind" not in inner and field.default is None:
                continue  # a section of the other task
            default = typing.cast(typing.Any, field.default_factory)
            chosen = kinds[inner["kind"]] if "kind" in inner else type(default())
            yield f"{key}.kind"
            yield from keys_of(chosen, inner, key)
        else:
            for part in (hints[field.name], *typing.get_args(hints[field.name])):
                if isinstance(part, type) and dataclasses.is_dataclass(part):
                    yield from keys_of(part, inner, key)


def cases() -> list[tuple[str, str, str]]:
    """Every (base, key, odd value as text of TOML)."""
    found = []
    for name, (tree, sections) in bases().items():
        for key in keys_of(RunConfig, tree):
            if any(f"{key}.".startswith(f"{section}.") or not section for section in sections):
                # An empty section is the default one, whose data is no small run.
                odd = [value for value in ODD_VALUES if value != {} or key not in _SECTIONS]
                found += [(name, key, as_toml(value)) for value in odd]
                found += [(name, key, text) for text in NESTED]
    return found


def as_toml(value: Any) -> str:
    """A value as `--set` reads it; a text in quotes, so that it stays one."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        body = "".join(f"\\U{ord(c):08x}" if not c.isalnum() and c != " " else c for c in value)
        return f'"{body}"'
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {as_toml(v)}" for k, v in value.items()) + "}"
    return repr(value)
