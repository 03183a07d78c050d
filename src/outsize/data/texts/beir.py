"""Folders in the form of BEIR (Thakur et al. 2021): a corpus, queries and judgements of pairs.

`corpus.jsonl` has `_id`, `title` and `text`, `queries.jsonl` has `_id` and `text`, and `qrels/` has
tab-separated files with a header: `query-id`, `corpus-id`, `score`. Each may be compressed
(`.gz`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from outsize.bounds import require_text
from outsize.data.click_data import Split
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encoding_progress import encoding_progress
from outsize.data.encoding.sources import Chunk, read_chunks
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.json_lines import read_json_lines
from outsize.data.texts.judged_files import JudgedPairs, TextTable, read_texts
from outsize.data.texts.text_column import strings_of
from outsize.data.texts.text_pairs import TextPairs
from outsize.errors import ConfigError, DataError

_QRELS: dict[Split, tuple[str, ...]] = {
    "train": ("train",), "validation": ("dev", "validation"), "test": ("test",)
}  # fmt: skip
_COLUMNS = ("query-id", "corpus-id", "score")


@dataclass(frozen=True)
class BeirConfig(TextDataConfig):
    """A folder in the form of BEIR.

    The pairs of `qrels/train.tsv` are trained on; those of `dev.tsv` and `test.tsv` are the
    validation and the test set. An item's text is its title and its text. Texts without a word are
    left out and counted, and so are judgements of queries or items that are not there.

    Attributes:
        path: The folder.
        validation: Share of the training queries used for validation where there is no `dev.tsv`,
            chosen by a hash of their ids.
        max_bad_rows: The largest share of texts, or of judgements, that is left out; more is an
            error.
    """

    path: str
    validation: float = 0.05
    max_bad_rows: float = 0.001

    def __post_init__(self) -> None:
        require_text(self, "path")
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation must be between 0 and 1, but got {self.validation}")

    def read(self) -> TextPairs:  # noqa: D102
        folder = Path(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; paths are relative to the folder the "
                            "command runs in")  # fmt: skip
        qrels = self._qrels(folder)
        corpus, asked = found_file(folder, "corpus.jsonl"), found_file(folder, "queries.jsonl")
        bad = [BadRows() for _ in range(3)]
        items = read_texts(
            _json_chunks(corpus, bad[0], ("title",)), ("_id", "text"), "item", bad[0], "title"
        )
        queries = read_texts(_json_chunks(asked, bad[1]), ("_id", "text"), "query", bad[1])
        judged = JudgedPairs(queries, items, bad[2])
        for split, path in qrels.items():
            for chunk in read_chunks([path], _COLUMNS, TextTable((), "\t", False), bad[2]):
                query, item, grade = (strings_of(chunk, name, path) for name in _COLUMNS)
                columns = {"query": query, "item": item, "grade": grade}
                judged.add(split, path, chunk.numbers, columns)
        return judged.assemble(
            str(folder), self.validation, self.seed, self.max_bad_rows, others=bad[:2]
        )

    def _qrels(self, folder: Path) -> dict[Split, Path]:
        found: dict[Split, Path] = {}
        for split, names in _QRELS.items():
            for name in names:
                path = optional_file(folder / "qrels", f"{name}.tsv")
                if path is not None:
                    found.setdefault(split, path)
        if "train" not in found:
            raise DataError(
                f"{folder} has no qrels/train.tsv, so there is nothing to learn from: it is a set "
                "to test on, after training on another"
            )
        return found


def optional_file(folder: Path, name: str) -> Path | None:
    """A file of a folder, or its compressed form; `None` if there is neither."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            if path.stat().st_size == 0:
                raise DataError(f"{path} is empty: there is nothing to read in it")
            return path
    return None


def found_file(folder: Path, name: str) -> Path:
    """As `optional_file`, but refused where there is neither."""
    found = optional_file(folder, name)
    if found is None:
        raise DataError(f"{folder} has no {name}, nor {name}.gz: is it the right folder?")
    return found


def _json_chunks(
    path: Path, bad: BadRows, optional: tuple[str, ...] = ()
) -> Iterator[tuple[Path, Chunk]]:
    with encoding_progress(path.stat().st_size, "read") as advance:
        for chunk in read_json_lines(path, ("_id", "text"), bad, optional):
            yield path, chunk
            advance(f"read {path.name}", chunk.num_bytes)
