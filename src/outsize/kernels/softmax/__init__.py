"""Exact draws from a softmax over many items; the torch reference, and faster paths equal to it."""
