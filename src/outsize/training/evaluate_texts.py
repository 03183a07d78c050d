"""Measuring a text model on the splits of its own data."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from outsize.data import TokenData
from outsize.data.click_data import SPLITS
from outsize.training.export_run import encode_items
from outsize.training.quantization_loss import QUERIES_PER_CHUNK
from outsize.training.retrieval_evaluation import evaluate_retrieval
from outsize.training.run_files import RunFile
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import (
    beta_of,
    finite,
    load_retrieval_model,
    measured_on_splits,
)


def evaluate_text_run(
    run: RunFolder, step: int | None = None, run_file: RunFile | None = None
) -> dict[str, Any]:
    """The validation and test metrics of a text model.

    Args:
        run: The run, whose data must still be there.
        step: Take the checkpoint of this step instead of the best validation's.
        run_file: Also write the rankings of the test split to a TREC run file.

    Returns:
        As `outsize.training.evaluate.evaluate`.
    """
    config = run.config()
    assert config.retrieval is not None
    model, data, chosen = load_retrieval_model(run, config, step)
    assert isinstance(data, TokenData)
    items = encode_items(model, data, config)
    beta = torch.tensor(beta_of(config, chosen.folder))
    found = {}
    for split in SPLITS[1:]:
        with contextlib.ExitStack() as stack:
            record, depth = None, 0
            if run_file is not None and split == "test":
                ids = (side.ids.to_pylist() for side in (data.texts.queries, data.texts.items))
                record = stack.enter_context(run_file.recorder(*ids))
                depth = run_file.depth
            metrics = evaluate_retrieval(
                data,
                split,
                lambda rows: model.encode_queries(data.queries.take(rows)),
                items,
                beta,
                config.retrieval.metrics(),
                QUERIES_PER_CHUNK,
                record,
                depth,
            )
        found[split] = finite(metrics)
    return measured_on_splits(run, chosen, found)
