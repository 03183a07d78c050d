"""The callback that lets a Trainer commit, save and restore a cache of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outsize.errors import CheckpointError, ConfigError
from outsize.integrations.sentence_transformers.loss import NegativeCacheLoss
from outsize.ranks.collectives import world_size

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ConfigError("a Trainer needs transformers: pip install 'outsize[text]'") from error


DEFAULT_FOLDER = "negative_cache"


class NegativeCacheCallback(TrainerCallback):  # type: ignore[misc]
    """Commits after each optimizer step; saves and restores the cache with checkpoints.

    With `save_only_model`, checkpoints have no cache, as they have no state of the optimizer.

    Args:
        loss: The loss that the Trainer computes.
        folder: Where the cache is within a checkpoint; one name per loss. If it is not the default,
            metrics begin with it instead of with "cache".
    """

    def __init__(self, loss: NegativeCacheLoss, folder: str = "negative_cache") -> None:
        self._loss = loss
        self._folder = folder
        self._prefix = "cache" if folder == DEFAULT_FOLDER else folder

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the cache if the Trainer resumes and the loss was not loaded before."""
        # The Trainer makes a new state for each training; it writes the fields of its class only.
        owners: dict[str, NegativeCacheLoss] = vars(state).setdefault("negative_cache_folders", {})
        if owners.setdefault(self._folder, self._loss) is not self._loss:
            raise ConfigError(
                f"two losses would save their caches in {self._folder!r} of a checkpoint: give "
                "each a folder, as in loss.callback('cache_a')"
            )
        if world_size() > 1 and args.world_size == 1:
            raise ConfigError(
                f"there are {world_size()} ranks, but the Trainer does not know of the others, so "
                "each would train alone: set use_cpu=True in its arguments if there is no GPU"
            )
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
        if args.save_only_model:  # the first batch fills a cache anew
            return
        raise CheckpointError(
            f"there is no {self._folder} in {candidates[-1]}: resume from an earlier checkpoint, "
            "call loss.load(folder) with the cache of the checkpoint before training, or set "
            "loss.is_loaded = True to fill a cache anew"
        )

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit what the step has encoded."""
        self._loss.commit()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the cache beside the optimizer's state, where the Trainer saves that."""
        if state.is_hyper_param_search or args.save_only_model:
            return
        self._loss.save(Path(args.output_dir) / f"checkpoint-{state.global_step}" / self._folder)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the metrics of the cache to the latest entry of the Trainer's history."""
        if state.log_history and "loss" in state.log_history[-1]:
            found = self._loss.metrics()
            state.log_history[-1].update({f"{self._prefix}_{name}": found[name] for name in found})
