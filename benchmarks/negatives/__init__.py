"""The negative cache: its theory, and training on real data."""
