"""The folder of an item index: its lock, and how states are written and read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from outsize.errors import ItemIndexError, WriteError
from outsize.file_locks import folder_lock
from outsize.files import reason_of
from outsize.search.manifest import Manifest
from outsize.search.segments import Rows, Segment, open_segments, write_state


class IndexFolder:
    """The files of one index.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against other writers; readers need no lock."""
        busy = (
            f"another process writes to the index in {self.path}: wait for it, or open the "
            "index read-only"
        )
        needs = (
            "an index is written in a folder that this user may write to, and opened read-only "
            "elsewhere"
        )
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(folder_lock(self.path, busy, needs))
            except WriteError as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise ItemIndexError(
                        f"{self.path} holds no item index: make one with ItemIndex.create"
                    ) from None
                raise
            yield

    def read(
        self, verify: bool, verified: Manifest | None = None
    ) -> tuple[Manifest, list[Segment]]:
        """The current state.

        A writer may replace it while it is opened; then the newer one is read.

        Args:
            verify: Compare the checksums of all files, which reads them once.
            verified: An earlier state whose files need not be read again.
        """
        while True:
            manifest = Manifest.read(self.path)
            try:
                if verify:
                    manifest.require_whole(self.path, verified)
                return manifest, open_segments(self.path, manifest)
            except ItemIndexError:
                if Manifest.read(self.path).generation == manifest.generation:
                    raise

    def write(
        self, before: Manifest, segments: Sequence[Segment], versions: tuple[str, ...]
    ) -> tuple[Manifest, list[Segment]]:
        """Write a state after another one; segments without a name are written, and get one."""
        generation = before.generation + 1
        files: dict[str, dict[str, object]] = {}
        named: list[Segment] = []
        try:
            for number, segment in enumerate(segments):
                name = segment.name
                if name:
                    files[name] = dict(before.files[name])
                else:
                    name = f"rows-{generation:010d}-{number}.safetensors"
                    files[name] = segment.rows.write(self.path / name)
                named.append(replace(segment, name=name))
            state = f"state-{generation:010d}.safetensors"
            files[state] = write_state(self.path / state, named)
            after = replace(
                before,
                generation=generation,
                versions=versions,
                segments=tuple(segment.name for segment in named),
                state=state,
                files=files,
            )
            after.write(self.path)
        except BaseException as error:
            # What was written would fill a full disk for good.
            with contextlib.suppress(OSError, ItemIndexError):
                Manifest.read(self.path).remove_others(self.path)
            if isinstance(error, OSError):
                raise WriteError(
                    f"could not write to {self.path}: {reason_of(error)}; the index is as before"
                ) from error
            raise
        with contextlib.suppress(OSError):  # what is left is removed after a later write
            after.remove_others(self.path)
        opened = [
            segment
            if segment.name in before.files
            else replace(
                segment,
                rows=Rows.open(self.path / segment.name, after.dim, after.precision),
            )
            for segment in named
        ]
        return after, opened
