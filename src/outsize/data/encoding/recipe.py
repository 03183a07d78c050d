"""The recipe of encoded data: equal recipes and source files give equal bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from outsize.data.encoding.splits import HashSplit, SplitConfig
from outsize.data.encoding.splits.base import require_finite
from outsize.errors import ConfigError
from outsize.suggestions import few, shortened

FORMAT = 1  # of the encoded files; part of every recipe's hash
_MAX_SUBSAMPLE = (1 << 31) - 1
_MAX_NAME = 200  # of a feature, whose name is part of file names


@dataclass(frozen=True)
class VocabularyConfig:
    """How the values of a categorical column become ids; id 0 is reserved for unknown values.

    Attributes:
        min_count: Rarer values become unknown.
        max_ids: Maximum number of values per column, the most frequent ones; 0 for no limit.
        hashed: Columns without a vocabulary: a value's id is a hash of it.
        num_buckets: Number of ids of a hashed column.
        max_held: Maximum number of values held in memory while counting, over all columns, 16 bytes
            each. Beyond it, the rarest values of the largest column are forgotten.
    """

    min_count: int = 1
    max_ids: int = 0
    hashed: tuple[str, ...] = ()
    num_buckets: int = 1_000_000
    max_held: int = 40_000_000

    def __post_init__(self) -> None:
        least = {"min_count": 1, "max_ids": 0, "num_buckets": 1, "max_held": 1000}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be >= {bound}, but got {getattr(self, name)}")


@dataclass(frozen=True)
class LabelRule:
    """How the label of a row is determined.

    Attributes:
        column: The column of the label; empty if all rows have label 1.
        positive_from: Numbers from this one on are 1, others 0; without it, labels are 0 or 1.
        dropped: Rows with these numbers are left out.
        positive_values: For text labels: these values are 1, others 0.
    """

    column: str
    positive_from: float | None = None
    dropped: tuple[float, ...] = ()
    positive_values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_finite("positive_from", self.positive_from)
        if self.positive_values and (self.positive_from is not None or self.dropped):
            raise ConfigError(
                "positive_values are texts, positive_from and dropped labels are numbers: "
                "give the one or the others"
            )


@dataclass(frozen=True)
class Recipe:
    """What to read, and how to encode it.

    Attributes that `TabularConfig` has too mean the same there.

    Attributes:
        paths: Files or patterns, in the order they are read.
        label: How the label of a row is determined.
        modulus: For hexadecimal columns: an id is the number modulo this; one for all, or each.
        derive: A key of `DERIVED`: how further columns are derived.
    """

    paths: tuple[str, ...]
    label: LabelRule
    dense: tuple[str, ...] = ()
    log1p: tuple[str, ...] = ()
    standardize: tuple[str, ...] = ()
    signed_log: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    multi_valued: tuple[str, ...] = ()
    separator: str = "|"
    max_length: int = 0
    missing: tuple[str, ...] = ()
    decimal: str = "."
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    modulus: tuple[int, ...] = ()
    split: SplitConfig = field(default_factory=HashSplit)
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    quoted: bool = True
    subsample: int = 1
    derive: str = ""
    max_bad_rows: float = 0.001

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError("path is empty: name at least one file or pattern")
        if not self.id_columns:
            raise ConfigError("no categorical and no multi_valued column: name at least one")
        if "" in (*self.dense_columns, *self.id_columns):
            raise ConfigError("a column has an empty name: name a column of the file")
        for columns in (self.dense_columns, self.id_columns):  # a number may be a category too
            names = [self.label.column, *columns]
            for name in names:
                if names.count(name) > 1:
                    raise ConfigError(f"column {name!r} is used twice: give it one role")
        require_distinct_features(self.id_columns)
        if unknown := set(self.vocabulary.hashed) - set(self.id_columns):
            raise ConfigError(
                f"hashed names {sorted(unknown)[0]!r}, which is not a categorical column; "
                f"there are {few(self.id_columns, sorted(unknown)[0])}"
            )
        for modulus in self.modulus:
            if not 1 <= modulus <= 1 << 32:
                raise ConfigError(f"modulus must be between 1 and 2**32, but got {modulus}")
        if len(self.modulus) not in (0, 1, len(self.categorical)):
            raise ConfigError(
                f"modulus must be one number or {len(self.categorical)}, one per column, "
                f"but got {len(self.modulus)}"
            )
        if not 0 <= self.max_bad_rows <= 1:
            raise ConfigError(f"max_bad_rows is a share, 0 to 1, but got {self.max_bad_rows}")
        if self.subsample < 1:
            raise ConfigError(f"subsample must be >= 1, but got {self.subsample}")
        if self.subsample > _MAX_SUBSAMPLE:
            raise ConfigError(f"subsample must be <= {_MAX_SUBSAMPLE}, but got {self.subsample}")
        if len(self.delimiter.encode()) > 1 or (self.delimiter and self.delimiter in '\r\n"'):
            raise ConfigError(
                "delimiter must be one character other than a line end or a quote, but got "
                f"{self.delimiter!r}"
            )
        if self.decimal not in (".", ","):
            raise ConfigError(f'decimal must be "." or ",", but got {self.decimal!r}')
        if self.max_length < 0:
            raise ConfigError(f"max_length must be >= 0, but got {self.max_length}")
        if self.multi_valued and not self.separator:
            raise ConfigError("multi_valued columns need a separator that is not empty")

    @classmethod
    def of(cls, config: object, **settings: Any) -> Recipe:
        """A recipe with these settings, and else with the fields of `config` of the same name."""
        shared = {
            field.name: getattr(config, field.name)
            for field in fields(cls)
            if hasattr(config, field.name)
        }
        return cls(**{**shared, **settings})

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """The numeric columns, in the order of the dense features."""
        return self.dense + self.log1p + self.standardize + self.signed_log

    @property
    def id_columns(self) -> tuple[str, ...]:
        """The columns that become ids, in the order of the features."""
        return self.categorical + self.multi_valued

    def digest(self) -> str:
        """A hash of the recipe without `max_bad_rows`, which does not change the result."""
        tree = {**asdict(self), "split_kind": type(self.split).__name__, "format": FORMAT}
        del tree["max_bad_rows"]
        unset = (
            (tree, "missing", ()), (tree, "decimal", "."), (tree, "signed_log", ()),
            (tree["split"], "format", ""),
        )  # fmt: skip
        for section, key, value in unset:
            if section.get(key) == value:  # as in recipes from before there was such a key
                section.pop(key, None)
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def require_distinct_features(columns: Sequence[str]) -> None:
    """Raise a `ConfigError` if two columns would be features of the same name."""
    features = [feature_name(column) for column in columns]
    if len(set(features)) < len(features):
        twice = next(name for name in features if features.count(name) > 1)
        raise ConfigError(f"two columns would be features of the same name: {shortened(twice)}")


def feature_name(column: str) -> str:
    """The name of the feature made from a column, usable as a key in a state dict."""
    name = re.sub(r"[^A-Za-z0-9_\-]", "_", column)
    if len(name) > _MAX_NAME:
        digest = hashlib.sha256(column.encode()).hexdigest()[:16]
        name = f"{name[: _MAX_NAME - 18]}_{digest}"
    return f"_{name}" if name.startswith("-") or not name else name
