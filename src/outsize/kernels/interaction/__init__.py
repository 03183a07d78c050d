"""Dot products of all pairs of an example's vectors."""
