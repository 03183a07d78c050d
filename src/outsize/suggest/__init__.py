"""Suggesting a run for a file of data: `outsize init`."""

from outsize.suggest.suggest import suggest_run, write_run_file
from outsize.suggest.suggestion import Suggestion, Wishes

__all__ = ["Suggestion", "Wishes", "suggest_run", "write_run_file"]
