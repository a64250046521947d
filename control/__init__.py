"""Background loops run by one elected leader: one loop, one file; a tick returns counts."""
