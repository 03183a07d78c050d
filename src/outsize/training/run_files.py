"""Rankings of an evaluation as a TREC run file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from outsize.errors import ConfigError
from outsize.metrics import writing_run
from outsize.training.retrieval_evaluation import Record


@dataclass(frozen=True)
class RunFile:
    """Where rankings are written, and how long they are.

    White space separates the columns of the file, so it is written as in URLs where an id has it,
    and so is the sign for that: "Toy Story" is `Toy%20Story`.

    Attributes:
        path: The file; replaced if it exists.
        depth: Items per query.
    """

    path: Path
    depth: int = 1000

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError(f"the depth of a run file must be >= 1, but got {self.depth}")

    @contextlib.contextmanager
    def recorder(self, queries: Sequence[str], items: Sequence[str]) -> Iterator[Record]:
        """A function that writes what was found; the file appears at the end, whole.

        Args:
            queries: The raw id of each query, by row.
            items: The raw id of each item, by row.
        """
        with writing_run(self.path) as add:

            def record(rows: Tensor, found: Tensor, scores: Tensor) -> None:
                lines = zip(rows.tolist(), found.tolist(), scores.tolist(), strict=True)
                for query, line, logits in lines:
                    pairs = zip(line[: self.depth], logits, strict=False)
                    ranking = [(_word(items[row]), logit) for row, logit in pairs if row >= 0]
                    add(_word(queries[query]), ranking)

            yield record


@contextlib.contextmanager
def recording(
    run_file: RunFile | None, queries: Sequence[str], items: Sequence[str]
) -> Iterator[tuple[Record | None, int]]:
    """What records rankings and how long they are; `None` and 0 without a run file."""
    if run_file is None:
        yield None, 0
        return
    with run_file.recorder(queries, items) as record:
        yield record, run_file.depth


def _word(name: str) -> str:
    """An id without white space."""
    if not any(character.isspace() or character == "%" for character in name):
        return name
    return "".join(
        "".join(f"%{byte:02X}" for byte in character.encode())
        if character.isspace() or character == "%"
        else character
        for character in name
    )
