"""Passes over the cached copies of rows that a step touches."""
