"""Searching the items of a run's text model.

The export of the checkpoint that was searched last stays in the run, in a folder named by its step
and by a digest of the checkpoint, so that only the first search encodes the items.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from outsize.errors import ConfigError, ExportError
from outsize.export.format import holds_export
from outsize.export.text_search import TextSearch
from outsize.training.export_run import export_run
from outsize.training.run_folder import RunFolder
from outsize.training.run_weights import ChosenCheckpoint, choose_checkpoint

FOLDER = "search"
"""The folder within a run that holds the export."""


def open_search(folder: str | Path, step: int | None = None) -> tuple[TextSearch, str]:
    """A search over the items of an exported text model, or of a run, and a note on its weights.

    All items of a run are encoded first, unless the same checkpoint was searched before; an export
    has their vectors.

    Args:
        folder: The folder of a run, whose data must still be there, or of an export.
        step: For a run, take the checkpoint of this step instead of the best validation's.
    """
    run = RunFolder(Path(folder))
    if not run.holds_run():
        return TextSearch(run.path), ""
    if not run.config().reads_texts:
        raise ConfigError(
            f"{folder} holds no text model, so it cannot be searched with texts: export it, and "
            "use outsize predict for raw rows"
        )
    chosen = choose_checkpoint(run, step)
    if not os.access(run.path, os.W_OK):
        # Mapped files can be read after their folder was removed.
        with tempfile.TemporaryDirectory() as temporary:
            exported = Path(temporary) / run.path.resolve().name
            export_run(run.path, exported, chosen.step)
            return TextSearch(exported), chosen.note
    return _saved_search(run.path, chosen), chosen.note


def _saved_search(run: Path, chosen: ChosenCheckpoint) -> TextSearch:
    """The search over the export that is saved in the run; written if there is none."""
    manifest = (chosen.folder / "manifest.json").read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()[:12]
    exported = run / FOLDER / f"step-{chosen.step:010d}-{digest}"
    if holds_export(exported):
        try:
            return TextSearch(exported)
        except ExportError:  # damaged, or of a version that writes another format
            shutil.rmtree(exported)
    try:
        export_run(run, exported, chosen.step)
    except (ConfigError, ExportError):
        if not holds_export(exported):  # else another process was faster
            raise
    for other in (run / FOLDER).iterdir():
        if other.name.startswith("step-") and other != exported:
            shutil.rmtree(other, ignore_errors=True)
    return TextSearch(exported)
