"""Comparisons: table methods at several budgets and seeds against full tables, on one run."""
