"""Benchmarks of this repository, each one command: `python -m benchmarks.FOLDER.NAME`."""
