"""Click data read from encoded files, which are memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.contracts import Bag
from outsize.data.click_data import SPLITS, ClickBatch, ClickData, Split
from outsize.data.encoding.encoder_files import load_row_encoder
from outsize.data.encoding.ids import runs
from outsize.data.encoding.manifest import read_manifest, values_file
from outsize.data.encoding.recipe import Recipe
from outsize.data.encoding.row_encoder import RowEncoder
from outsize.data.shuffle import BlockShuffle
from outsize.errors import DataError
from outsize.spec import FeatureSpec, Pooling


class EncodedClicks(ClickData):
    """The click data in a folder that `open_encoded` returned.

    With `shuffle`, training rows come in a different order each epoch. Validation and test rows
    come in the order of the source.

    Args:
        folder: The folder.
        shuffle: Whether to shuffle training rows.
        seed: Seed of the shuffling.
        pooling: How bags of ids are pooled.
        recipe: The recipe it was encoded with; without it, there is no `row_encoder`.
    """

    def __init__(
        self,
        folder: Path,
        shuffle: bool = True,
        seed: int = 0,
        pooling: Pooling = "sum",
        recipe: Recipe | None = None,
    ) -> None:
        self.folder = folder
        self._recipe = recipe
        manifest = read_manifest(folder)
        self.num_dense = manifest["num_dense"]
        self.vocabularies = dict(manifest["num_ids"])
        checksums = sorted((name, facts["sha256"]) for name, facts in manifest["files"].items())
        self._fingerprint = hashlib.sha256(json.dumps(checksums).encode()).hexdigest()
        self.bad_rows: dict[str, int] = manifest["bad_rows"]["counts"]
        self._categorical: list[str] = manifest["categorical"]
        self._multi_valued: list[str] = manifest["multi_valued"]
        self._pooling = pooling
        sizes: dict[str, int] = manifest["num_examples"]
        # A recipe may hold out a single set, which is then used for validation and test.
        source = {split: split if sizes[split] else "validation" for split in SPLITS}
        self._sizes = {split: sizes[source[split]] for split in SPLITS}
        self._columns = {split: self._map(source[split], manifest) for split in SPLITS}
        self._order = BlockShuffle(sizes["train"], seed) if shuffle else None

    def num_examples(self, split: Split) -> int:  # noqa: D102
        return self._sizes[split]

    @property
    def fingerprint(self) -> str:  # noqa: D102
        return self._fingerprint

    def row_encoder(self) -> RowEncoder | None:  # noqa: D102
        return None if self._recipe is None else load_row_encoder(self.folder, self._recipe)

    @property
    def features(self) -> Sequence[FeatureSpec]:  # noqa: D102
        return tuple(FeatureSpec(name, pooling=self._pooling) for name in self.vocabularies)

    def examples(  # noqa: D102
        self, split: Split, first: int, stop: int, epoch: int = 0
    ) -> ClickBatch:
        rows: Any = slice(first, stop)
        if split == "train" and self._order is not None:
            rows = self._order.rows(first, stop, epoch)
        columns = self._columns[split]
        ids: dict[str, Tensor | Bag] = {}
        numbers = np.array(columns["ids"][rows].T, np.int64, order="C")
        for place, name in enumerate(self._categorical):
            ids[name] = torch.from_numpy(numbers[place])
        for name in self._multi_valued:
            ids[name] = _bag(columns[f"{name}-values"], columns[f"{name}-ends"], rows)
        return ClickBatch(
            torch.from_numpy(np.array(columns["dense"][rows])),
            ids,
            torch.from_numpy(columns["labels"][rows].astype(np.float32)),
        )

    def values(self, feature: str) -> list[str | None]:
        """The value of each id of a feature; `None` for the unknown id 0."""
        import pyarrow as pa

        path = self.folder / values_file(feature)
        if not path.exists():
            raise DataError(
                f"feature {feature!r} has no vocabulary: its ids are hashes or remainders"
            )
        named: list[str | None] = [None] * self.vocabularies[feature]
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
            for id_, value in zip(table["id"].to_pylist(), table["value"].to_pylist(), strict=True):
                named[id_] = value
        return named

    def _map(self, split: str, manifest: dict[str, Any]) -> dict[str, NDArray[Any]]:
        id_type, num_rows = np.dtype(manifest["id_type"]), manifest["num_examples"][split]
        kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
            "labels": (np.uint8, (num_rows,)),
            "dense": (np.float32, (num_rows, self.num_dense)),
            "ids": (id_type, (num_rows, len(self._categorical))),
        }
        for name in self._multi_valued:
            kinds[f"{name}-values"] = (id_type, (-1,))
            kinds[f"{name}-ends"] = (np.int64, (num_rows,))
        return {
            kind: _map_file(self.folder / f"{split}-{kind}.bin", number, shape)
            for kind, (number, shape) in kinds.items()
        }


def _map_file(path: Path, number: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.zeros([max(0, size) for size in shape], number)
    return np.memmap(path, number, mode="r").reshape(shape)


def _bag(values: NDArray[Any], ends: NDArray[np.int64], rows: Any) -> Bag:
    numbers = np.arange(len(ends))[rows] if isinstance(rows, slice) else rows
    starts = np.where(numbers > 0, ends[numbers - 1], 0) if len(numbers) else numbers
    lengths = ends[numbers] - starts
    offsets = np.cumsum(lengths) - lengths
    picked = values[runs(starts, lengths)].astype(np.int64)
    return Bag(torch.from_numpy(picked), torch.from_numpy(offsets))
