"""Comparing runs that are finished, by what their folders hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outsize.compare.text_tables import TextTable
from outsize.errors import ConfigError
from outsize.models import MODELS
from outsize.registries import name_of
from outsize.reporting.quantities import format_bytes, format_seconds
from outsize.training.config import RunConfig
from outsize.training.metric_names import label_of, metrics_of, number_of, quality_names
from outsize.training.report.history import RunHistory
from outsize.training.run_folder import RunFolder
from outsize.training.store_config import StoreConfig
from outsize.training.tables_config import TablesConfig


def compare_runs(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Metrics, memory and time of training of finished runs, in the order given."""
    return [_facts_of(RunFolder(folder)) for folder in folders]


def facts_of(folder: RunFolder, config: RunConfig, history: RunHistory) -> dict[str, Any]:
    """Metrics, memory and time of training of a run, as far as its log has them.

    Args:
        folder: The run.
        config: Its configuration.
        history: Its log.
    """
    tests = history.of("test")
    test = metrics_of(tests[-1]) if tests else {}
    summary = folder.summary() or {}
    return {
        "run": str(folder.path),
        "model": name_of(MODELS, config.model),
        "embeddings": _embeddings_of(config),
        "steps": history.last_step,
        "loss_label": config.loss_label,
        "test": {n: v for n, v in test.items() if n == "loss" or n in quality_names(test)},
        "total_bytes": summary.get("memory", {}).get("total_bytes"),
        "train_s": history.train_s,
    }


def runs_table(runs: Sequence[dict[str, Any]]) -> TextTable:
    """The runs as rows, losses by kind; a metric that a run does not have is a dash."""
    shown = [
        {label_of(name, run["loss_label"]): number_of(run["test"][name])
         for name in ("loss", *quality_names(run["test"])) if name in run["test"]}
        for run in runs
    ]  # fmt: skip
    labels = dict.fromkeys([run["loss_label"] for run in runs] + [n for own in shown for n in own])
    rows = []
    for run, own in zip(runs, shown, strict=True):
        metrics = [own.get(label, "–") for label in labels]
        size, seconds = run["total_bytes"], run["train_s"]
        rows.append([
            run["run"], run["model"], run["embeddings"], f"{run['steps']:,}", *metrics,
            "–" if size is None else format_bytes(size),
            "–" if seconds is None else format_seconds(seconds),
        ])  # fmt: skip
    known = ("run", "model", "embeddings", "steps")
    columns = (*known, *labels, "memory", "time of training")
    return TextTable("Test metrics at the best validation", columns, rows)


def _facts_of(folder: RunFolder) -> dict[str, Any]:
    if not folder.holds_run():
        raise ConfigError(f"{folder.path} holds no run: name folders of runs, or one run file")
    history = RunHistory(folder.metrics())
    if not history.of("test"):
        raise ConfigError(
            f"the run in {folder.path} is not finished: continue it with outsize train --resume"
        )
    return facts_of(folder, folder.config(), history)


def _embeddings_of(config: RunConfig) -> str:
    """How embeddings are stored, in a word or two."""
    wanted = config.embeddings
    if isinstance(wanted, TablesConfig):
        cap = wanted.max_params or wanted.max_bytes
        return wanted.method if cap is None else f"{wanted.method} {cap:,}"
    if isinstance(wanted, StoreConfig):
        cache = f", cache {wanted.cache.share:g}" if wanted.cache.share else ""
        return wanted.store + cache + (", overlapped" if wanted.overlap else "")
    return type(wanted).__name__
