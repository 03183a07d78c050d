"""Look-ups between the keys and rows of a cache of items."""
