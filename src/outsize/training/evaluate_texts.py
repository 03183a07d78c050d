"""Measuring a text model on the splits of its own data."""

from __future__ import annotations

from typing import Any

from outsize.data import TokenData
from outsize.training.quantization_loss import measure_retrieval_model
from outsize.training.run_files import RunFile, recording
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import (
    beta_of,
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
    model, data, chosen = load_retrieval_model(run, config, step)
    assert isinstance(data, TokenData)
    beta = beta_of(config, chosen.folder)
    ids = (side.ids.to_pylist() for side in (data.texts.queries, data.texts.items))
    with recording(run_file, *ids) as (record, depth):
        found = measure_retrieval_model(model, data, beta, config, record, depth)
    return measured_on_splits(run, chosen, found)
