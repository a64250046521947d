"""Pure decisions: standard library only, no I/O; `now` and randomness are arguments."""
