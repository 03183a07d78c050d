"""Benchmarks: one file each, with the peer a user would pick measured in the same run."""

from outsize.bench.registry import BENCHMARKS, run_benchmark

__all__ = ["BENCHMARKS", "run_benchmark"]
