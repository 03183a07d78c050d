"""The negative cache: items with mostly stale embeddings, on one rank or sharded over several."""
