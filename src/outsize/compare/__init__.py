"""Comparing table methods with full tables, at several budgets and seeds."""

from outsize.compare.comparison import compare
from outsize.compare.finished import compare_runs, runs_table
from outsize.compare.grid import Grid, read_budgets, read_methods, read_unit

__all__ = [
    "Grid",
    "compare",
    "compare_runs",
    "read_budgets",
    "read_methods",
    "read_unit",
    "runs_table",
]
