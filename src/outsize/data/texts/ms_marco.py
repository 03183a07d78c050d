"""MS MARCO passage ranking (Bajaj et al. 2016), and the graded judgements of TREC DL 2019.

`collection.tsv` has an id and a passage per line, `queries.*.tsv` an id and a query, and
`qrels.*.tsv` four columns: query, 0, passage, grade. TREC DL has its queries and graded judgements
in `msmarco-test2019-queries.tsv` and `2019qrels-pass.txt`. Each may be compressed (`.gz`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from outsize.bounds import require_text
from outsize.data.click_data import SPLITS
from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.encoding_progress import encoding_progress
from outsize.data.encoding.sources import Chunk, read_chunks, read_header
from outsize.data.encoding.text_keys import Column
from outsize.data.texts.beir import found_file
from outsize.data.texts.config import TextDataConfig
from outsize.data.texts.judged_files import JudgedPairs, TextTable, read_texts
from outsize.data.texts.text_column import strings_of
from outsize.data.texts.text_pairs import TextPairs
from outsize.errors import ConfigError, DataError

_ID_AND_TEXT = TextTable(("id", "text"))
_QRELS = ("query", "unused", "item", "grade")
_TRIPLE = ("query", "item", "negative")


@dataclass(frozen=True)
class MsMarcoConfig(TextDataConfig):
    """A folder with the files of MS MARCO passage ranking, or others in the same form.

    Texts without a word are left out and counted, and so are judgements of queries or passages that
    are not there. A passage with grade 0 is not relevant.

    Attributes:
        path: The folder.
        collection: The passages.
        queries: Files of queries, of any split.
        train: Judgements to train on, in four columns; or triples in three (query, passage,
            negative), such as `qidpidtriples.train.full.2.tsv`, of which the pairs are read:
            negatives are chosen by [negatives].
        validation: Judgements to validate with; empty to take a share of the training queries.
        test: Judgements to test on; empty to use the validation set for both. Those of TREC DL
            2019 are graded.
        validation_share: Share of the training queries used for validation without `validation`,
            chosen by a hash of their ids.
        min_grade: The smallest grade of a relevant passage in the test set; TREC DL takes 2. NDCG
            counts every grade.
        max_bad_rows: The largest share of texts, or of judgements, that is left out; more is an
            error.
    """

    path: str
    collection: str = "collection.tsv"
    queries: tuple[str, ...] = ("queries.train.tsv", "queries.dev.small.tsv")
    train: str = "qrels.train.tsv"
    validation: str = "qrels.dev.small.tsv"
    test: str = ""
    validation_share: float = 0.05
    min_grade: int = 1
    max_bad_rows: float = 0.001

    def __post_init__(self) -> None:
        require_text(self, "path", "collection", "queries", "train")
        if not self.queries:
            raise ConfigError("queries must name at least one file, but got none")
        if not 0 < self.validation_share < 1:
            raise ConfigError(
                f"validation_share must be between 0 and 1, but got {self.validation_share}"
            )
        if self.min_grade < 1:
            raise ConfigError(f"min_grade must be >= 1, but got {self.min_grade}")

    def read(self) -> TextPairs:  # noqa: D102
        folder = Path(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; paths are relative to the folder the "
                            "command runs in")  # fmt: skip
        named = zip(SPLITS, (self.train, self.validation, self.test), strict=True)
        files = {split: found_file(folder, name) for split, name in named if name}
        collection = found_file(folder, self.collection)
        asked = [found_file(folder, name) for name in self.queries]
        bad = [BadRows() for _ in range(3)]
        items = read_texts(_text_chunks([collection], bad[0]), ("id", "text"), "item", bad[0])
        queries = read_texts(_text_chunks(asked, bad[1]), ("id", "text"), "query", bad[1])
        judged = JudgedPairs(queries, items, bad[2])
        for split, path in files.items():
            for chunk, columns in _judgements(path, bad[2]):
                judged.add(split, path, chunk.numbers, columns)
        found = judged.assemble(
            str(folder), self.validation_share, self.seed, self.max_bad_rows, others=bad[:2]
        )
        if self.min_grade == 1 or found.pairs["test"] is found.pairs["validation"]:
            return found
        if not (found.grades["test"] >= self.min_grade).any():
            raise DataError(
                f"{files['test']} has no relevant passage of a grade of at least {self.min_grade}: "
                "lower min_grade"
            )
        return replace(found, min_grades={"test": self.min_grade})


def _judgements(path: Path, bad: BadRows) -> Iterator[tuple[Chunk, dict[str, Column]]]:
    """Chunks of a file, with the columns of query, item and grade."""
    import pyarrow as pa

    delimiter, width = _form_of(path)
    names = _QRELS if width == len(_QRELS) else _TRIPLE
    for chunk in read_chunks([path], names, TextTable(names, delimiter), bad):
        found = {name: strings_of(chunk, name, path) for name in names}
        if "grade" not in found:
            found["grade"] = pa.array(["1"] * chunk.num_rows, pa.large_string())
        yield chunk, found


def _form_of(path: Path) -> tuple[str, int]:
    """The delimiter of a file of judgements, and how many columns it has."""
    widths = {delimiter: len(read_header(path, delimiter, quoted=False)) for delimiter in "\t "}
    delimiter = "\t" if widths["\t"] > 1 else " "
    if widths[delimiter] in (len(_QRELS), len(_TRIPLE)):
        return delimiter, widths[delimiter]
    raise DataError(
        f"{path} has neither four columns (query, 0, passage, grade) nor three (query, passage, "
        "negative) in its first line, with one tab or one space between them"
    )


def _text_chunks(paths: list[Path], bad: BadRows) -> Iterator[tuple[Path, Chunk]]:
    with encoding_progress(sum(path.stat().st_size for path in paths), "read") as advance:
        for path in paths:
            for chunk in read_chunks([path], _ID_AND_TEXT.columns, _ID_AND_TEXT, bad):
                yield path, chunk
                advance(f"read {path.name}", chunk.num_bytes)
