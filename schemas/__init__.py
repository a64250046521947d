"""Wire contracts: HTTP bodies, events, and the broker message (ids only)."""
