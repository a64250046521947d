"""Peers of `bench control`: job queues as their guides show them, writing our rows one by one.

Each file runs by its path, with its own dependencies and without this package: see `bench.control`.
"""
