"""The state of a `RowEncoder`: read back from encoded data, and as plain facts with tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outsize.data.encoding.bad_rows import BadRows
from outsize.data.encoding.ids import HashedIds, VocabularyIds
from outsize.data.encoding.manifest import read_manifest, values_file
from outsize.data.encoding.recipe import LabelRule, Recipe, VocabularyConfig, feature_name
from outsize.data.encoding.row_encoder import RowEncoder, make_encoders, make_moments
from outsize.data.encoding.rows import read_rows
from outsize.data.encoding.sources import find_files
from outsize.data.encoding.text_keys import text_keys
from outsize.errors import DataError
from outsize.json_files import Absent, Each, OneOf, SchemaError, Whole, check

_COLUMNS = ("dense", "log1p", "standardize", "categorical", "multi_valued", "columns")
_PLAIN = ("modulus", "separator", "max_length", "delimiter", "quoted", "derive", "max_bad_rows")
_ALL = (*_COLUMNS, *_PLAIN)
_LABEL = {
    "column": str,
    "positive_from": OneOf(None, float),
    "dropped": [float],
    "positive_values": [str],
}
_RECIPE = {
    **{name: [str] for name in _COLUMNS},
    "modulus": [Whole(1)],
    "separator": str,
    "max_length": Whole(),
    "delimiter": str,
    "quoted": bool,
    "derive": str,
    "max_bad_rows": float,
    "missing": Absent([str]),
    "signed_log": Absent([str]),
    "decimal": Absent(str),
    "label": _LABEL,
    "hashed": [str],
    "num_buckets": Whole(1),
}
_SCHEMA = {
    "recipe": _RECIPE,
    "moments": Each((Whole(), float, float)),
    "num_ids": Each(Whole(1)),
}


def load_row_encoder(folder: Path, recipe: Recipe) -> RowEncoder:
    """The encoder that a folder of encoded data was made with.

    Vocabularies are read from its files of values. A folder of an older version has no moments:
    they are computed from the source files again.
    """
    manifest = read_manifest(folder)
    encoders = make_encoders(recipe)
    for name, encoder in encoders.items():
        if isinstance(encoder, VocabularyIds):
            feature = feature_name(name)
            encoder.set_keys(_keys_in(folder / values_file(feature), manifest["num_ids"][feature]))
    saved = manifest.get("moments")
    if saved is None:
        saved = _count_moments(recipe) if recipe.standardize or recipe.signed_log else {}
    moments = make_moments(recipe, saved)
    return RowEncoder(recipe, encoders, moments)


def encoder_state(encoder: RowEncoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """An encoder as plain facts and tensors.

    The tensors are, by feature, the keys of a vocabulary in the order of its ids, or the numbers of
    a hash function.
    """
    recipe = encoder.recipe
    own = {name: getattr(recipe, name) for name in _ALL}
    facts = {
        "recipe": {
            **_as_lists(own),
            "label": _as_lists(asdict(recipe.label)),
            "hashed": list(recipe.vocabulary.hashed),
            "num_buckets": recipe.vocabulary.num_buckets,
            **({"missing": list(recipe.missing)} if recipe.missing else {}),
            **({"signed_log": list(recipe.signed_log)} if recipe.signed_log else {}),
            **({"decimal": recipe.decimal} if recipe.decimal != "." else {}),
        },
        "moments": {name: list(moments.state()) for name, moments in encoder.moments.items()},
        "num_ids": {feature_name(n): found.num_ids for n, found in encoder.encoders.items()},
    }
    tensors: dict[str, Tensor] = {}
    for name, found in encoder.encoders.items():
        if isinstance(found, VocabularyIds):
            keys = found.keys_by_id().view(np.int64)
            tensors[f"{feature_name(name)}.keys"] = torch.from_numpy(keys)
        elif isinstance(found, HashedIds):
            tensors[f"{feature_name(name)}.hashes"] = found.hashes
    return facts, tensors


def encoder_from_state(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> RowEncoder:
    """The encoder that `encoder_state` described; raises a `SchemaError` if parts disagree."""
    check(facts, _SCHEMA)
    saved = facts["recipe"]
    vocabulary = VocabularyConfig(hashed=tuple(saved["hashed"]), num_buckets=saved["num_buckets"])
    recipe = Recipe(
        paths=("rows",),
        label=LabelRule(**_as_tuples({name: saved["label"][name] for name in _LABEL})),
        vocabulary=vocabulary,
        missing=tuple(saved.get("missing", ())),
        decimal=saved.get("decimal", "."),
        signed_log=tuple(saved.get("signed_log", ())),
        **_as_tuples({name: saved[name] for name in _ALL}),
    )
    encoders = make_encoders(recipe)
    wanted: set[str] = set()
    for name, encoder in encoders.items():
        feature = feature_name(name)
        if isinstance(encoder, VocabularyIds):
            wanted.add(f"{feature}.keys")
            keys = _tensor(tensors, f"{feature}.keys", 1)
            encoder.set_keys(keys.numpy().view(np.uint64))
        elif isinstance(encoder, HashedIds):
            wanted.add(f"{feature}.hashes")
            hashes = _tensor(tensors, f"{feature}.hashes", 2)
            if hashes.shape != encoder.hashes.shape:
                raise SchemaError(f"{feature}.hashes has the shape {tuple(hashes.shape)}")
            encoder.hashes = hashes
        if facts["num_ids"].get(feature) != encoder.num_ids:
            raise SchemaError(f"the ids of {feature!r} are not as many as its vocabulary has")
    if unknown := set(tensors) - wanted:
        raise SchemaError(f"{min(unknown)!r} belongs to no feature")
    for name in recipe.standardize + recipe.signed_log:
        if name not in facts["moments"]:
            raise SchemaError(f"moments.{name} is missing")
    moments = make_moments(recipe, facts["moments"])
    return RowEncoder(recipe, encoders, moments)


def _as_lists(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: list(value) if isinstance(value, tuple) else value for n, value in settings.items()}


def _as_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {n: tuple(value) if isinstance(value, list) else value for n, value in settings.items()}


def _tensor(tensors: Mapping[str, Tensor], name: str, num_axes: int) -> Tensor:
    found = tensors.get(name)
    if found is None or found.dtype != torch.int64 or found.dim() != num_axes:
        raise SchemaError(f"{name!r} is missing, or no int64 tensor of {num_axes} axes")
    return found


def _keys_in(path: Path, num_ids: int) -> NDArray[np.uint64]:
    """The keys of a file of values, in the order of their ids."""
    import pyarrow as pa

    keys = np.zeros(num_ids - 1, np.uint64)
    try:
        with pa.memory_map(str(path)) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                keys[batch["id"].to_numpy() - 1] = text_keys(batch["value"])
    except (OSError, IndexError, pa.ArrowException) as error:
        raise DataError(
            f"{path} cannot be read: {' '.join(str(error).split())}; remove its folder to encode "
            "the data again"
        ) from None
    return keys


def _count_moments(recipe: Recipe) -> dict[str, tuple[int, float, float]]:
    """The moments of standardized columns, by another pass over the files."""
    moments = make_moments(recipe)
    for rows in read_rows(find_files(recipe.paths), recipe, BadRows()):
        for name, found in moments.items():
            found.add(rows.numbers[name])
    return {name: found.state() for name, found in moments.items()}
