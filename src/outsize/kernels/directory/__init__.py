"""Look-ups between keys and rows of caches: of items, and of copies of rows."""
