"""Export the model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.data import DATA, ClickData
from outsize.data.click_data import SPLITS
from outsize.errors import ConfigError
from outsize.export import require_free, write_exported
from outsize.models import ClickModelConfig
from outsize.registries import name_of
from outsize.suggestions import few
from outsize.training.config import RunConfig
from outsize.training.run_weights import load_click_model, open_run


def _data_facts(config: RunConfig, data: ClickData) -> dict[str, Any]:
    """What the card says of the training data; of paths, the names only."""
    paths = getattr(config.data, "path", ())
    names = [Path(path).name for path in ((paths,) if isinstance(paths, str) else paths)]
    label = getattr(config.data, "label", "")
    return {
        "data": name_of(DATA, config.data),
        **({"data_files": few(names)} if names else {}),
        **({"label": label} if label else {}),
        **{f"{split}_examples": data.num_examples(split) for split in SPLITS},
        "data_fingerprint": data.fingerprint,
    }


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
    loaded = load_click_model(folder, step)
    chosen = loaded.chosen
    training = {"step": chosen.step, "is_best": chosen.is_best, "metrics": chosen.metrics}
    written = write_exported(
        out,
        loaded.model,
        config.model,
        training,
        encoder=loaded.data.row_encoder(),
        batch_size=config.train.eval_batch_size,
        data=_data_facts(config, loaded.data),
    )
    return {**written, **training, "note": chosen.note}
