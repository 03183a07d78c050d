"""Measuring a two-tower model on a labelled file of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from outsize.data import RetrievalData
from outsize.data.encoding.text_keys import text_keys
from outsize.data.interactions import InteractionsConfig
from outsize.data.item_lists import ItemLists
from outsize.errors import ConfigError, DataError
from outsize.export.file_reading import LabelledFile, cannot_score, file_progress, file_to_read
from outsize.export.labelled_pairs import read_pairs
from outsize.export.pairs import PairFiles, SeenItems, read_seen, require_pair_files
from outsize.export.retrieval import ItemSearcher
from outsize.metrics import RankingMetrics
from outsize.models import RetrievalModel
from outsize.training.config import RunConfig
from outsize.training.retrieval_config import CUTS
from outsize.training.retrieval_evaluation import rank_relevant
from outsize.training.run_files import RunFile, recording


def pair_facts(config: RunConfig, beta: float) -> dict[str, Any] | None:
    """How files of pairs of a run are read and what is measured on them; `None` if it has none."""
    if not isinstance(config.data, InteractionsConfig):
        return None
    assert config.retrieval is not None
    facts = asdict(PairFiles.of(config.data))
    own = {"columns": list(facts["columns"]), "metrics": config.retrieval.cuts(), "beta": beta}
    return {**facts, **own}


def cold_keys(data: RetrievalData) -> NDArray[np.uint64] | None:
    """The keys of queries without a training pair, where queries have raw ids."""
    if data.queries.names is None:
        return None
    is_cold = data.known("validation").counts() == 0
    keys: NDArray[np.uint64] = text_keys(data.queries.names)[is_cold.numpy()]
    return keys


def seen_in_run(data: RetrievalData) -> SeenItems:
    """What the test of a run leaves out of rankings: training and validation pairs."""
    queries, items = data.known("test").pairs()
    return SeenItems(text_keys(data.queries.names)[queries.numpy()], items.numpy())


def evaluate_pairs(
    model: RetrievalModel,
    file: LabelledFile,
    facts: Mapping[str, Any] | None,
    seen: SeenItems | None = None,
    run_file: RunFile | None = None,
) -> dict[str, Any]:
    """The ranking metrics of a model on a file of pairs, as in the evaluation of a run.

    Known pairs are not relevant, and their items are left out of the ranking of their query; cold
    queries are not evaluated. Held in memory are two numbers per pair and the features of each
    query, and never all scores.

    Args:
        model: A model with its items.
        file: A file with the columns of the query tower and of the item.
        facts: What `pair_facts` returned.
        seen: The known pairs, where the file names no files of them.
        run_file: Also write the rankings to a TREC run file.
    """
    searcher, path = model.searcher, file_to_read(file.path)
    assert isinstance(searcher, ItemSearcher)
    files = require_pair_files(searcher.pairs)
    if facts is None or "metrics" not in facts or searcher.encoder is None:
        raise ConfigError("this model does not know what to measure: export its run again")
    if file.exclude:
        seen = read_seen(file.exclude, files, searcher.items)
    with file_progress(path, "read", file.quiet) as advance:
        pairs = read_pairs(path, files, searcher.encoder, searcher.items, advance)
    most = files.max_bad_rows if file.max_bad_rows is None else file.max_bad_rows
    if pairs.bad.total > most * pairs.bad.num_rows:
        raise cannot_score(pairs.bad)
    is_warm = torch.from_numpy(~np.isin(pairs.keys, searcher.cold))[pairs.queries]
    asked, wanted = pairs.queries[is_warm], pairs.items[is_warm]
    relevant, known = relevant_and_known(pairs.keys, asked, wanted, seen)
    if not len(relevant.values):
        raise DataError(
            f"{path}: no query can be evaluated: there is no pair, every pair is known already, or "
            "the training data has no pair of its queries"
        )
    with recording(run_file, pairs.names, searcher.names) as (record, depth):
        metrics = rank_relevant(
            relevant,
            known,
            lambda rows: model.encode_queries({n: v[rows] for n, v in pairs.features.items()}),
            searcher.vectors,
            torch.tensor(facts["beta"]),
            RankingMetrics(**{name: facts["metrics"].get(name, ()) for name in CUTS}),
            record=record,
            depth=depth,
        )
    note = "" if seen is None else seen.note()
    return {**metrics, "num_rows": len(pairs.items), "num_bad": pairs.bad.total, "note": note}


def relevant_and_known(
    keys: NDArray[np.uint64],
    asked: Int64[Tensor, " pairs"],
    wanted: Int64[Tensor, " pairs"],
    seen: SeenItems | None,
) -> tuple[ItemLists, ItemLists]:
    """The relevant and the known items of each query, given its key and the pairs of a file."""
    none = torch.zeros(0, dtype=torch.int64)
    known = ItemLists(none, none, len(keys))
    if seen is not None:
        found = seen.of(keys)
        known = ItemLists(found.lines(), found.values, len(keys))
    new = ~known.contains(asked, wanted)
    return ItemLists(asked[new], wanted[new], len(keys)), known
