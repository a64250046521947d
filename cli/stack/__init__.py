"""The local stack: embedded Postgres and Valkey, and the supervisor that keeps every process of Headrace up.

Guarantee: no process started from here outlives the process that started it, kill -9 included, because each
child asks the kernel for a death signal. Linux only for that reason.
"""
