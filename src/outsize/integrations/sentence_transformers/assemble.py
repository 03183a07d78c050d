"""A sentence-transformers model from bare weights, a configuration and a tokenizer."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from outsize.errors import ConfigError, DataError
from outsize.verified_folders import open_tensors

_UNUSED = ("pooler.", "cls.", "classifier.")  # heads that mean pooling does not need
_DERIVED = ("position_ids", "token_type_ids")  # buffers that older files contain


def assemble_model(
    folder: str | Path,
    pooling: str = "mean",
    normalize: bool = True,
    max_seq_length: int | None = 256,
) -> Any:
    """Build a `SentenceTransformer` from a folder without one's own files.

    The folder has `config.json`, a tokenizer (`tokenizer.json` or a vocabulary), and one file
    `*.safetensors` under any name and in any precision. Nothing is downloaded. Save the model with
    its `save_pretrained`, and any program that uses sentence-transformers loads it.

    Args:
        folder: The folder.
        pooling: How tokens become one vector: "mean", "cls", "max" or "lasttoken".
        normalize: Append a module that scales embeddings to length 1.
        max_seq_length: Longer texts are cut to this many tokens; `None` for what the model takes.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import (
            Normalize,
            Pooling,
            Transformer,
        )
    except ImportError as error:
        raise ConfigError(
            "assemble_model needs sentence-transformers: pip install 'outsize[text]'"
        ) from error
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    path = Path(folder)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if len(files) != 1 or not (path / "config.json").is_file():
        raise DataError(
            f"{path} must have a config.json and one file of weights (*.safetensors), but has "
            f"{len(files)} of the latter"
        )
    encoder = AutoModel.from_config(AutoConfig.from_pretrained(path, local_files_only=True))
    _load_weights(encoder, files[0])
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    with TemporaryDirectory() as saved:
        encoder.save_pretrained(saved)
        tokenizer.save_pretrained(saved)
        body = Transformer(saved, max_seq_length=max_seq_length)
    modules = [body, Pooling(body.get_embedding_dimension(), pooling_mode=pooling)]
    if normalize:
        modules.append(Normalize())
    return SentenceTransformer(modules=modules)


def _load_weights(encoder: torch.nn.Module, path: Path) -> None:
    """Load weights as float32, whatever prefix their names have; raises if any is missing."""
    wanted = encoder.state_dict()
    with open_tensors(path) as tensors:
        names = list(tensors.keys())
        suffix = next(iter(wanted))
        prefix = next((name[: -len(suffix)] for name in names if name.endswith(suffix)), "")
        given = {
            name.removeprefix(prefix): tensors.get_tensor(name).float()
            for name in names
            if name.startswith(prefix)
        }
    missing = [name for name in wanted if name not in given and not name.startswith(_UNUSED)]
    missing = [name for name in missing if not name.endswith(_DERIVED)]
    if missing:
        raise DataError(f"{path} lacks {len(missing)} weights of the model, such as {missing[0]}")
    try:
        encoder.load_state_dict(
            {name: given[name] for name in wanted if name in given}, strict=False
        )
    except RuntimeError as error:
        raise DataError(f"{path} does not fit its config.json: {error}") from None
