"""Comparing table methods with full tables, at several budgets and seeds."""

from outsize.compare.comparison import compare
from outsize.compare.grid import Grid, read_budgets, read_methods, read_unit

__all__ = ["Grid", "compare", "read_budgets", "read_methods", "read_unit"]
