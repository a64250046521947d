"""The only SQL, Redis and broker calls. Nothing here commits: services own the transaction."""
