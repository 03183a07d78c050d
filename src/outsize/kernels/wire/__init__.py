"""Vectors as bytes, for messages between ranks."""
