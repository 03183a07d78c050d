"""Graphs: nodes of several types, edges of several relations, labels and splits."""
