"""The negative cache: items with embeddings that are mostly stale, on one rank or shared by all."""
