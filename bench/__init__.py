"""Benchmarks: ratios of arms measured in one run."""
