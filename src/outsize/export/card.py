"""The card of an exported model: `card.json` for tools, and a short `README.md` for people."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outsize.export.format import TEXTS
from outsize.export.tables import ExportedTable
from outsize.files import write_json, write_text_atomically
from outsize.reporting.quantities import format_bytes

CARD, README = "card.json", "README.md"
_SHOWN_METRICS = (
    "loss", "auc", "normalized_entropy", "calibration", "accuracy", "micro_f1", "macro_f1"
)  # fmt: skip


def write_card(
    folder: Path,
    config: Mapping[str, Any],
    tables: Sequence[ExportedTable],
    dense: Mapping[str, Tensor],
    data: Mapping[str, Any],
) -> None:
    """Write the card of an export into its folder.

    Args:
        folder: The folder.
        config: Its configuration, files included.
        tables: Its tables.
        dense: Its dense weights.
        data: Facts about the training data.
    """
    card = make_card(config, tables, dense, data)
    write_json(folder / CARD, card)
    write_text_atomically(folder / README, _readme(card))


def make_card(
    config: Mapping[str, Any],
    tables: Sequence[ExportedTable],
    dense: Mapping[str, Tensor],
    data: Mapping[str, Any],
) -> dict[str, Any]:
    """What there is to know about an exported model, as plain values."""
    training = config["training"]
    dense_bytes = sum(weight.numel() * weight.element_size() for weight in dense.values())
    index_bytes = sum(table.index_bytes for table in tables)
    return {
        "task": config["task"],
        "model": config["model"],
        "data": dict(data),
        "features": feature_facts(config),
        "metrics": [
            {"split": split, "step": training.get("step"), **metrics}
            for split, metrics in training.get("metrics", {}).items()
        ],
        "step": training.get("step"),
        "is_best_step": training.get("is_best"),
        "quantization": training.get("quantization"),
        "tables": [
            {**table.facts, "bytes": table.num_bytes, "num_parameters": table.num_parameters}
            for table in tables
        ],
        "memory_bytes": {
            "table_parameters": sum(table.num_bytes for table in tables) - index_bytes,
            "table_index_maps": index_bytes,
            "dense_weights": dense_bytes,
        },
        "file_bytes": {name: facts["bytes"] for name, facts in config["files"].items()},
        "versions": {
            "outsize": config["outsize"],
            "export_format": config["format"],
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def feature_facts(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The raw columns that a model reads, with their types and transforms.

    Without an encoding, the features of ids by name.
    """
    if config["task"] == "graph":
        return _graph_facts(config["graph"])
    sizes = {table["name"]: table["num_rows"] for table in config["tables"]}
    encoding = config.get("encoding")
    if encoding is None:
        return [
            {"feature": f["name"], "type": "ids", "num_ids": sizes[f["table"]]}
            for f in config["features"]
        ]
    if "recipe" not in encoding:
        numbers = {"transform": "standardized"}
        return [{**c, **(numbers if c["type"] == "number" else {})} for c in encoding["columns"]]
    recipe = encoding["recipe"]
    columns: list[dict[str, Any]] = []
    for transform, names in (
        ("none", recipe["dense"]),
        ("log(x + 1)", recipe["log1p"]),
        ("standardized", recipe["standardize"]),
        ("sign(x) · log(1 + |x|), standardized", recipe.get("signed_log", [])),
    ):
        columns += [{"column": name, "type": "number", "transform": transform} for name in names]
    names = [*recipe["categorical"], *recipe["multi_valued"]]
    for name, (feature, num_ids) in zip(names, encoding["num_ids"].items(), strict=True):
        columns.append(
            {
                "column": name,
                "feature": feature,
                "type": "value" if name in recipe["categorical"] else "list of values",
                "ids": _id_kind(name, recipe),
                "num_ids": num_ids,
            }
        )
    return columns


def _graph_facts(graph: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns that ask for nodes, and those that describe new nodes."""
    nodes = {own["name"]: own for own in graph["nodes"]}
    relations = {own["name"]: own for own in graph["relations"]}
    columns, kind = graph["columns"], graph["node_type"]

    def fact(column: str, what: str, of: str, num_ids: int) -> dict[str, Any]:
        return {"column": column, "type": what, "ids": of, "num_ids": num_ids}

    found = [fact(columns["id"], "raw id of a node", kind, nodes[kind]["num_nodes"])]
    if graph["target_type"] is not None:
        target = graph["target_type"]
        size = nodes[target]["num_nodes"]
        found.append(fact(columns["target"], "raw id of a target", target, size))
    for name, column in columns["neighbors"].items():
        source = relations[name]["source"]
        size = nodes[source]["num_nodes"]
        found.append(fact(column, "of a new node: list of neighbours", source, size))
    sizes = {own["name"]: own["num_ids"] for own in nodes[kind]["attributes"]}
    for name, column in columns["attributes"].items():
        found.append(fact(column, "of a new node: list of values", name, sizes[name]))
    return found


def _id_kind(name: str, recipe: Mapping[str, Any]) -> str:
    if recipe["modulus"] and name in recipe["categorical"]:
        return "hexadecimal number modulo"
    return "hash" if name in recipe["hashed"] else "vocabulary"


def _readme(card: Mapping[str, Any]) -> str:
    lines = [f"# {card['model']['kind']} ({card['task']} model)", ""]
    for name, value in card["data"].items():
        lines.append(f"- {name.replace('_', ' ')}: {value}")
    sizes = ", ".join(f"{name} {format_bytes(size)}" for name, size in card["file_bytes"].items())
    lines += [f"- files: {sizes}", f"- written by outsize {card['versions']['outsize']}", ""]
    lines += _metric_lines(card)
    lines += _quantization_lines(card)
    lines += ["## Inputs", "", "| column | type | encoding |", "|---|---|---|"]
    for fact in card["features"]:
        how = fact.get("transform") or f"{fact.get('ids', 'ids')}, {fact.get('num_ids', 0):,} ids"
        lines.append(
            f"| {_cell(fact.get('column', fact.get('feature')))} | {fact['type']} | {how} |"
        )
    lines += [
        "",
        "## Tables",
        "",
        "| table | method | rows | dim | size |",
        "|---|---|---|---|---|",
    ]
    for table in card["tables"]:
        lines.append(
            f"| {_cell(table['name'])} | {table['method']} | {table['num_rows']:,} | "
            f"{table['dim']} | {format_bytes(table['bytes'])} |"
        )
    lines += ["", "## Use", "", "```python", "import outsize", ""]
    lines += ['model = outsize.load_exported("DIR")']
    lines += [_call(card), "```", ""]
    return "\n".join(lines)


def _call(card: Mapping[str, Any]) -> str:
    """The line of Python that uses a model."""
    if TEXTS in card["file_bytes"]:
        return 'found = model.search(["a query"], k=10)  # found.items, found.scores'
    call = "search(rows, k=10)" if card["task"] == "retrieval" else "predict(rows)"
    return f"scores = model.{call}  # raw values: a dict of lists, or a frame"


def _metric_lines(card: Mapping[str, Any]) -> list[str]:
    """A table of the metrics that were measured on these weights."""
    if not card["metrics"]:
        return ["No metrics were measured on these weights: `outsize evaluate DIR FILE` does.", ""]
    best = " (the best validation)" if card["is_best_step"] else ""
    title = f"## Metrics of step {card['step']:,}{best}" if card["step"] else "## Metrics"
    return [title, "", *_metric_table(card["metrics"]), ""]


def _metric_table(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of metrics, a line per split."""
    known = dict.fromkeys(n for m in measured for n in m if n not in ("split", "step"))
    names = [name for name in known if name in _SHOWN_METRICS or "@" in name]
    lines = [f"| split | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for metrics in measured:
        values = " | ".join(_number(metrics.get(name)) for name in names)
        lines.append(f"| {metrics['split']} | {values} |")
    return lines


def _quantization_lines(card: Mapping[str, Any]) -> list[str]:
    """What a quantized model was before."""
    facts = card["quantization"]
    if not facts:
        return []
    sizes = [format_bytes(facts[name]) for name in ("table_bytes_before", "table_bytes")]
    lines = [
        f"The tables were quantized after training ({facts['method']}): {sizes[0]} before, "
        f"{sizes[1]} now.",
        "",
    ]
    if facts["metrics_before"]:
        before = [{"split": split, **values} for split, values in facts["metrics_before"].items()]
        lines += ["Metrics before:", "", *_metric_table(before), ""]
    return lines


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.5f}"


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
