"""Benchmarks: ratios of arms measured in one run.

`harness` orders arms, pairs their runs and writes results; `peer` runs a process of this package that answers
commands; `stack` starts the whole platform; `client` is the load; one file a benchmark, named as the command.
An absolute figure of one machine is never a target.

Units: `*_s` seconds, `core_ms` milliseconds of one core.
"""
