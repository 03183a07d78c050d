"""The manifest of a folder of encoded data, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outsize.data.click_data import SPLITS
from outsize.data.encoding.recipe import Recipe, feature_name
from outsize.errors import DataError
from outsize.json_files import FILE_FACTS, Absent, Each, SchemaError, Whole, read_sealed

MANIFEST = "manifest.json"
BAD_ROWS = {"num_rows": Whole(), "counts": Each(Whole()), "first": Each(str)}
_SCHEMA = {
    "recipe": str,
    "sources": [{"name": str, "bytes": Whole(), "mtime_ns": int, "head": str}],
    "num_dense": Whole(),
    "id_type": str,
    "categorical": [str],
    "multi_valued": [str],
    "num_ids": Each(Whole(1)),
    "num_examples": {split: Whole() for split in SPLITS},
    "bad_rows": BAD_ROWS,
    "files": Each(FILE_FACTS),
    "moments": Absent(Each((Whole(), float, float))),  # of standardized columns
}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder of encoded data; raises a `DataError` if it is invalid."""
    try:
        return load_manifest(folder)
    except FileNotFoundError:
        raise DataError(f"{folder / MANIFEST}: no such file; this is not encoded data") from None
    except OSError as error:
        raise DataError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from None
    except SchemaError as error:
        raise DataError(
            f"{folder / MANIFEST} is damaged: {error}; remove the folder to encode the data again"
        ) from None


def load_manifest(folder: Path) -> dict[str, Any]:
    """Like `read_manifest`, but raises a `SchemaError` or an `OSError`."""
    manifest = read_sealed(folder / MANIFEST, _SCHEMA)
    _require_consistent(manifest)
    return manifest


def require_made_by(manifest: Mapping[str, Any], recipe: Recipe) -> None:
    """Raise a `SchemaError` if a manifest does not belong to data of this recipe."""
    expected = {
        "recipe": recipe.digest(),
        "num_dense": len(recipe.dense_columns),
        "categorical": [feature_name(name) for name in recipe.categorical],
        "multi_valued": [feature_name(name) for name in recipe.multi_valued],
    }
    for name, value in expected.items():
        if manifest[name] != value:
            raise SchemaError(f"{name} is not what the recipe gives")


def require_named(path: Path, num_ids: int) -> None:
    """Raise a `SchemaError` if a file of values does not name the ids `1 … num_ids − 1`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with pa.memory_map(str(path)) as file:
        ids = pa.ipc.open_file(file).read_all()["id"]
        largest = pc.max(ids).as_py() or 0
    if largest != num_ids - 1:
        raise SchemaError(f"it names {largest:,} ids where the vocabulary has {num_ids - 1:,}")


def values_file(feature: str) -> str:
    """The name of the file that maps the ids of a feature to values."""
    return f"values-{feature}.arrow"


def _require_consistent(manifest: Mapping[str, Any]) -> None:
    """Raise a `SchemaError` if the parts of a manifest contradict each other."""
    features = [*manifest["categorical"], *manifest["multi_valued"]]
    if sorted(features) != sorted(manifest["num_ids"]):
        raise SchemaError("num_ids are not those of the features")
    if manifest["id_type"] not in ("int32", "int64"):
        raise SchemaError(f"id_type is {manifest['id_type']!r:.40}")
    if manifest["bad_rows"]["counts"].keys() != manifest["bad_rows"]["first"].keys():
        raise SchemaError("bad_rows counts other kinds than it shows")
    files, id_bytes = manifest["files"], np.dtype(manifest["id_type"]).itemsize
    exact: dict[str, int] = {}
    multiples: set[str] = set()
    for split in SPLITS:
        num_rows = manifest["num_examples"][split]
        exact[f"{split}-labels.bin"] = num_rows
        exact[f"{split}-dense.bin"] = 4 * num_rows * manifest["num_dense"]
        exact[f"{split}-ids.bin"] = id_bytes * num_rows * len(manifest["categorical"])
        for name in manifest["multi_valued"]:
            exact[f"{split}-{name}-ends.bin"] = 8 * num_rows
            multiples.add(f"{split}-{name}-values.bin")
    for name in (*exact, *multiples):
        if name not in files:
            raise SchemaError(f"it does not mention {name}")
        size = files[name]["bytes"]
        if size % id_bytes if name in multiples else size != exact[name]:
            raise SchemaError(f"num_examples does not fit the {size:,} bytes of {name}")
    for name in files.keys() - exact.keys() - multiples:
        if name not in map(values_file, features):
            raise SchemaError(f"it mentions a file {name!r:.60} that encoded data does not have")
