"""Exact sampling from a softmax over many items: the torch reference, and faster equal paths."""
