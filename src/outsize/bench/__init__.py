"""Benchmarks that users run on their own machine, each with its peer measured in the same run."""

from outsize.bench.registry import BENCHMARKS, run_benchmark
from outsize.bench.runner import Benchmark, measure

__all__ = ["BENCHMARKS", "Benchmark", "measure", "run_benchmark"]
