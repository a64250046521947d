"""The `headrace` command and the local stack's supervisor."""
