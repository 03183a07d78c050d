"""Vectors composed of pieces of a shared array: compositional embeddings and ROBE."""
