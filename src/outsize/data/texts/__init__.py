"""Texts for retrieval: queries, items and pairs of both, from files and installed packages."""
