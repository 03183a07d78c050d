"""Rows gathered and pooled for a batch, and the sum of their gradients by row."""
