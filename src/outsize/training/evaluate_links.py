"""Measuring a graph model on a labelled file of links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from outsize.data import RetrievalData
from outsize.errors import ConfigError, DataError
from outsize.export.file_reading import LabelledFile
from outsize.export.graph_files import NodeFileReading, read_known_links
from outsize.export.graph_predictors import LinkPredictor
from outsize.export.pairs import SeenItems
from outsize.metrics import RankingMetrics
from outsize.training.evaluate_pairs import relevant_and_known
from outsize.training.retrieval_evaluation import rank_relevant


def known_links(data: RetrievalData) -> SeenItems:
    """What the test of a run leaves out of rankings: training and validation links."""
    sources, targets = (part.cpu().numpy() for part in data.known("test").pairs())
    return SeenItems(sources.astype(np.uint64), targets)


def evaluate_links(
    predictor: LinkPredictor,
    file: LabelledFile,
    ranking: Mapping[str, Any] | None,
    seen: SeenItems | None = None,
) -> dict[str, Any]:
    """The ranking metrics of a model on a file of links, as in the evaluation of a run.

    Known links are not counted, and their targets are left out of the ranking of their source; cold
    sources are not evaluated. Both nodes of a link must be in the graph. Held in memory are two
    numbers per link.

    Args:
        predictor: Of an exported model, or of a run.
        file: A file with the columns of sources and targets.
        ranking: Cut-offs and inverse temperature, as in `GraphPurpose`.
        seen: The known links, where the file names no files of them.
    """
    if ranking is None:
        raise ConfigError("this model does not know what to measure: export its run again")
    if file.exclude:
        seen = read_known_links(predictor, file.exclude)
    assert predictor.columns.target is not None
    others = (predictor.columns.target,)
    reading = NodeFileReading(predictor.reader, file.path, file.max_bad_rows or 0.0, others)
    none = np.zeros(0, np.int64)
    sources, targets = [none], [none]
    with reading.progress("read", file.quiet):
        for chunk, asked in reading.asked():
            pairs, found = predictor.read_targets(chunk, reading.path, asked, reading.bad)
            reading.require_good()
            sources.append(pairs.nodes)
            targets.append(found)
    reading.finish(reading.bad.num_rows)
    asked_for, wanted = np.concatenate(sources), np.concatenate(targets)
    if (asked_for < 0).any():
        raise DataError(
            f"{reading.path}: {int((asked_for < 0).sum()):,} links lead from nodes that the graph "
            "does not have: leave them out, or predict them with outsize predict"
        )
    is_warm = ~np.isin(asked_for, predictor.cold)
    nodes, places = np.unique(asked_for[is_warm], return_inverse=True)
    own, rows, items = map(torch.from_numpy, (nodes, places.reshape(-1), wanted[is_warm]))
    relevant, known = relevant_and_known(nodes.astype(np.uint64), rows, items, seen)
    if not len(relevant.values):
        raise DataError(
            f"{reading.path}: no source can be evaluated: there is no link, every one is known "
            "already, or the training data has no link of its source"
        )
    metrics = rank_relevant(
        relevant,
        known,
        lambda rows: predictor.sources[own[rows]],
        predictor.targets,
        torch.tensor(ranking["beta"]),
        RankingMetrics(**ranking["metrics"]),
    )
    note = "" if seen is None else seen.note()
    return {**metrics, "num_rows": len(wanted), "num_bad": reading.bad.total, "note": note}
