"""Searching the items of a run's text model."""

from __future__ import annotations

import tempfile
from pathlib import Path

from outsize.export.text_search import TextSearch
from outsize.training.export_run import export_run
from outsize.training.run_folder import RunFolder


def open_search(folder: str | Path, step: int | None = None) -> tuple[TextSearch, str]:
    """A search over the items of an exported text model, or of a run, and a note on its weights.

    All items of a run are encoded first; an export has their vectors.

    Args:
        folder: The folder of a run, whose data must still be there, or of an export.
        step: For a run, take the checkpoint of this step instead of the best validation's.
    """
    path = Path(folder)
    if not RunFolder(path).holds_run():
        return TextSearch(path), ""
    # Mapped files can be read after their folder was removed.
    with tempfile.TemporaryDirectory() as temporary:
        exported = Path(temporary) / path.resolve().name
        summary = export_run(path, exported, step)
        return TextSearch(exported), str(summary["note"])
