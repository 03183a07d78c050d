"""The distinct ids of a batch, and the places of each."""
