"""The callback that lets a Trainer commit, save and restore a cache of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import CheckpointError, ConfigError
from outsize.integrations.sentence_transformers.loss import NegativeCacheLoss

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ConfigError("a Trainer needs transformers: pip install 'outsize[text]'") from error


class NegativeCacheCallback(TrainerCallback):  # type: ignore[misc]
    """Commits after each optimizer step; saves and restores the cache with checkpoints.

    Args:
        loss: The loss that the Trainer computes.
        folder: Where the cache is within a checkpoint; one name per loss.
    """

    def __init__(self, loss: NegativeCacheLoss, folder: str = "negative_cache") -> None:
        self._loss = loss
        self._folder = folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the cache if the Trainer resumes and the loss was not loaded before."""
        if not state.global_step or self._loss.is_loaded:
            return
        name = f"checkpoint-{state.global_step}"
        resumed = args.resume_from_checkpoint
        candidates = [Path(args.output_dir) / name]
        if isinstance(resumed, str):
            candidates.insert(0, Path(resumed))
        for checkpoint in candidates:
            if (checkpoint / self._folder).is_dir():
                self._loss.load(checkpoint / self._folder)
                return
        raise CheckpointError(
            f"there is no {self._folder} in {candidates[-1]}: resume from an earlier checkpoint, "
            "or call loss.load(folder) with the cache of the checkpoint before training"
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit what the step has encoded."""
        self._loss.commit()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the cache beside the model."""
        if state.is_hyper_param_search:
            return
        self._loss.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / self._folder)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the metrics of the cache to the latest entry of the Trainer's history."""
        if state.log_history and "loss" in state.log_history[-1]:
            found = self._loss.metrics()
            state.log_history[-1].update({f"cache_{name}": found[name] for name in found})
