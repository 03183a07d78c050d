"""Pillar 1, how a table is represented: one file per method."""

from outsize.tables.build import TABLES, build_table
from outsize.tables.full import FullTable

__all__ = ["TABLES", "FullTable", "build_table"]
