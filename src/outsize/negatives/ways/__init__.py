"""Ways to choose negatives, one file per way, named as in run files."""
