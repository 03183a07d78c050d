"""Export the model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import ConfigError
from outsize.export import require_free, write_exported
from outsize.models import ClickModelConfig
from outsize.training.build import build_click_data, build_model
from outsize.training.run_weights import choose_checkpoint, load_weights, open_run


def export_run(run: str | Path, out: str | Path, step: int | None = None) -> dict[str, Any]:
    """Write the model of a run's best checkpoint for `outsize.load_exported`.

    Args:
        run: The folder of the run; it is only read, and may still be training.
        out: The folder to write; new, or empty.
        step: Take the checkpoint of this step instead of the best validation's.

    Returns:
        What was written: folder, kind of the model, step, the metrics measured on these weights,
        parameters and bytes; and a note where they are not those of the best validation.
    """
    folder, out = open_run(run), Path(out)
    require_free(out)
    config = folder.config()
    if not isinstance(config.model, ClickModelConfig):
        raise ConfigError(
            f"{folder.path} holds a run of a {config.task} model, but only click models can be "
            "exported: take the model from `outsize.train(…).model`"
        )
    chosen = choose_checkpoint(folder, step)
    model = build_model(config, build_click_data(config))
    load_weights(folder, config, model, chosen.folder)
    training = {"step": chosen.step, "is_best": chosen.is_best, "metrics": chosen.metrics}
    written = write_exported(out, model, config.model, training)
    return {**written, **training, "note": chosen.note}
