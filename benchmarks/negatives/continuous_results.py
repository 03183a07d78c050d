"""The results of `benchmarks.negatives.continuous_search` as Markdown."""

from typing import Any


def table(results: dict[str, Any]) -> str:
    """Placeholder."""
    return ""
