"""A saved cache of texts: the files of each rank, and `texts.json`, which says what they hold."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.errors import CheckpointError
from outsize.files import write_json
from outsize.integrations.sentence_transformers.settings import TextCacheSettings
from outsize.integrations.sentence_transformers.tokens import feature_shapes
from outsize.json_files import Absent, OneOf, Whole
from outsize.negatives import NegativeCache, ShardedNegativeCache, write_cache
from outsize.negatives.cache.contract import ItemCache
from outsize.rank_files import write_folder
from outsize.ranks.collectives import barrier, rank, world_size
from outsize.verified_folders import WriteFiles, read_manifest, read_verified, require_whole

_NAME, _UNUSED = "texts.json", "unused.json"
_FORMAT = 1


@dataclass(frozen=True)
class TextLayout:
    """What a cache of texts holds.

    Attributes:
        dim: Width of an embedding.
        width: Stored tokens per text.
        names: Stored features per token.
        shared: What holds for all texts, such as the length of the prompt, as JSON.
        num_texts: Texts of the corpus; 0 for a cache of recent positives.
        log_beta: The logarithm of the inverse temperature.
        corpus: The fingerprint of the corpus; empty where it is not known, or there is none.
    """

    dim: int
    width: int
    names: list[str]
    shared: str
    num_texts: int
    log_beta: float = 0.0
    corpus: str = ""

    def build_cache(self, settings: TextCacheSettings) -> ItemCache:
        """An empty cache of such texts, shared by all ranks, with room for the whole corpus."""
        size = world_size()
        num_items, corpus_size = settings.num_items, settings.corpus_size
        if self.num_texts:
            num_items, corpus_size = self.num_texts, None
            if size > 1:  # hashes spread over ranks at random: room for those that get more
                per_rank = -(-self.num_texts // size)
                num_items = size * (per_rank + int(6 * per_rank**0.5) + 16)
        kind = NegativeCache if size == 1 else ShardedNegativeCache
        cache: ItemCache = kind(
            num_items,
            self.dim,
            feature_shapes(self.names, self.width),
            settings.precision,
            corpus_size=corpus_size,
            seed=settings.seed,
        )
        return cache


def save_folder(folder: Path, cache: ItemCache, layout: TextLayout) -> None:
    """Save a cache; replaces one that a stopped run left there. All ranks call it."""

    def write(partial: Path) -> dict[str, dict[str, Any]]:
        files = write_cache(cache, partial)
        if rank() == 0:
            content = {"format": _FORMAT, **asdict(layout)}
            files[_NAME] = write_json(partial / _NAME, content)
        return files

    _replace_folder(folder, write)


def save_unused(folder: Path) -> None:
    """Save that a loss has no cache yet. All ranks call it."""

    def write(partial: Path) -> dict[str, dict[str, Any]]:
        if rank() != 0:
            return {}
        return {_UNUSED: write_json(partial / _UNUSED, {"format": _FORMAT})}

    _replace_folder(folder, write)


def _replace_folder(folder: Path, write: WriteFiles) -> None:
    final = folder.resolve()
    if rank() == 0:
        for old in (final, final.with_name(f"{final.name}.partial")):
            shutil.rmtree(old, ignore_errors=True)
    barrier()
    write_folder(final, write)


def load_folder(folder: Path) -> TextLayout | None:
    """The layout of a saved cache, verified; `None` if the loss had no cache yet."""
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a saved cache: resume from an earlier checkpoint, or start over"
        )
    if _UNUSED in read_manifest(folder):
        return None
    files = read_manifest(folder, _NAME)
    require_whole(folder / _NAME, files[_NAME])
    schema = {
        "format": Whole(1),
        "dim": Whole(1),
        "width": Whole(1),
        "names": [str],
        "shared": str,
        "num_texts": Whole(),
        "log_beta": OneOf(int, float),
        "corpus": Absent(str),
    }
    content = read_verified(folder / _NAME, schema)
    content.pop("format")
    return TextLayout(**content)
