"""Ids of now."""

import secrets
import time

from core.ids import make_id


def new_id(prefix: str) -> str:
    """Make an id of now."""
    return make_id(prefix, time.time_ns() // 1_000_000, secrets.token_bytes(10))
