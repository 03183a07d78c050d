"""The files of one relation of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from outsize.bounds import require_text
from outsize.errors import ConfigError


@dataclass(frozen=True)
class RelationFile:
    """Files with one edge per row, between nodes of two types or of one.

    Attributes:
        path: Files or patterns; see `NodeFile`.
        source: The node type of sources.
        target: The node type of targets.
        source_column: Column of the source's id; by default the name of its type.
        target_column: Column of the target's id; by default the name of its type.
        columns: Names of the columns of text files without a header.
        delimiter: Between columns; by default a comma for `.csv` and a tab for other text.
        quoted: Whether values of a text file may be quoted.
        comment: Lines at the top of a text file that start with this are skipped, such as "#".
    """

    path: tuple[str, ...]
    source: str
    target: str
    source_column: str = ""
    target_column: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    comment: str = ""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("path is empty: name at least one file or pattern")
        require_text(self, "path", "source", "target", "columns")
        if self.ends[0] == self.ends[1]:
            raise ConfigError(
                f"source and target are both in the column {self.ends[0]!r}: name two columns as "
                "source_column and target_column"
            )

    @property
    def ends(self) -> tuple[str, str]:
        """The columns of sources and targets."""
        return self.source_column or self.source, self.target_column or self.target
