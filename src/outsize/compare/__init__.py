"""Comparing table methods with full tables, at several budgets and seeds, and runs with runs."""

from outsize.compare.comparison import compare
from outsize.compare.finished import compare_runs, runs_table
from outsize.compare.grid import Grid, read_budgets, read_methods, read_unit
from outsize.compare.named_runs import read_runs
from outsize.compare.overlay_page import overlay_page, result_facts

__all__ = [
    "Grid",
    "compare",
    "compare_runs",
    "overlay_page",
    "read_budgets",
    "read_methods",
    "read_runs",
    "read_unit",
    "result_facts",
    "runs_table",
]
