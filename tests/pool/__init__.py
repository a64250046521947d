"""The pool against a real Valkey: the worker is a process of its own (`worker_process.py`)."""
