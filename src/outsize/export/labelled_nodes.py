"""Measuring the classes that are predicted for the nodes of a labelled file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outsize.errors import DataError
from outsize.export.file_reading import LabelledFile
from outsize.export.graph_files import NodeFileReading
from outsize.export.graph_predictors import NodePredictor
from outsize.export.left_out import LeftOut
from outsize.metrics import ClassMetrics
from outsize.suggestions import few


def evaluate_nodes(predictor: NodePredictor, file: LabelledFile) -> dict[str, Any]:
    """The metrics of the classes of the nodes of a file, with the number of rows.

    As in training, rows without a class, or of a class that the model does not know, are left out.

    Args:
        predictor: Of an exported model, or of a run.
        file: A file with the columns of ids and of classes.
    """
    label = predictor.reader.columns.label
    assert label is not None
    reading = NodeFileReading(predictor.reader, file.path, file.max_bad_rows or 0.0, (label,))
    labels = _Labels(predictor)
    metrics = ClassMetrics(len(predictor.classes), multi_label=predictor.multi_label)
    with reading.progress("evaluate", file.quiet):
        for chunk, asked in reading.asked():
            reading.require_good()
            wanted, is_labelled = labels.read(chunk.columns[label], reading.path, label)
            asked = asked.take(is_labelled[asked.is_good])
            if len(asked.nodes):
                kind = predictor.reader.node_type
                logits = predictor.encoder.encode(kind, asked.nodes, asked.new)
                metrics.add(logits, torch.from_numpy(wanted[asked.is_good]))
    reading.finish(reading.bad.num_rows)
    if not metrics.num_examples:
        raise DataError(
            f"{file.path}: no row has a class that the model knows in column {label!r}"
            + (f", which has {labels.unknown.example}" if labels.unknown.count else "")
            + f"; it knows {few(predictor.classes)}"
        )
    return {
        **metrics.result(),
        "num_rows": metrics.num_examples,
        "num_bad": reading.bad.total,
        "note": "; ".join(filter(None, (reading.unknown.note(), labels.unknown.note()))),
    }


class _Labels:
    """Classes of rows, by name.

    Args:
        predictor: Knows the classes.
    """

    def __init__(self, predictor: NodePredictor) -> None:
        self._number_of = {name: number for number, name in enumerate(predictor.classes)}
        self._multi_label = predictor.multi_label
        self._separator = predictor.reader.columns.label_separator
        self.unknown = LeftOut("classes are none that the model knows")

    def read(self, column: Any, path: Path, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The class of each row, or a row of 0 and 1, and a mask of the rows that have any."""
        import pyarrow as pa

        from outsize.export.raw_ids import naming_column, split_lists

        try:
            if not self._multi_label:
                numbers = self._numbers(column)
                return numbers, numbers >= 0
            lengths, flat = split_lists(column, self._separator)
            numbers = self._numbers(flat)
        except pa.ArrowException as error:
            raise naming_column(path, name, column, error) from None
        owners = np.repeat(np.arange(len(lengths)), lengths)[numbers >= 0]
        found = np.zeros((len(lengths), len(self._number_of)), np.float32)
        found[owners, numbers[numbers >= 0]] = 1
        return found, np.asarray(found.any(axis=1))

    def _numbers(self, column: Any) -> NDArray[np.int64]:
        from outsize.data.encoding.column_values import to_text

        text, _ = to_text(column)
        names = text.values.to_pylist()
        numbers = np.array([*(self._number_of.get(name, -1) for name in names), -1], np.int64)
        unknown = np.flatnonzero((numbers[text.codes] < 0) & (text.codes >= 0))
        self.unknown.add(text.values.take(text.codes[unknown]))
        return numbers[text.codes]
