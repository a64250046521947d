"""Webhooks: secrets told from their ids, what an answer means, and how long to wait after a failure.

Secrets are not stored: each is derived from its id under the deployment's pepper, so a stolen table signs nothing.

Source: Standard Webhooks (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md).
"""

import base64
import hashlib
import hmac
from enum import Enum

SECRET_PREFIX = "whsec_"
MAX_ATTEMPTS = 11
_FIRST_S, _FACTOR, _MOST_S = 5.0, 4, 24 * 3600.0  # 5 s, 20 s, 80 s, … a day: over three days in all
_JITTER = 0.2


def secret_of(secret_id: str, pepper: bytes) -> str:
    """The text of a secret, as its owner and the client libraries have it."""
    derived = hmac.new(pepper, f"webhook secret {secret_id}".encode(), hashlib.sha256).digest()
    return SECRET_PREFIX + base64.b64encode(derived).decode()


def retry_in_s(attempts: int, random: float, asked_s: float | None) -> float | None:
    """Return the pause after so many failed attempts, None when that was the last.

    `random` from 0 to 1 spreads those that failed together; `asked_s` is what the receiver's Retry-After asked for.
    """
    if attempts >= MAX_ATTEMPTS:
        return None
    pause: float = min(_FIRST_S * _FACTOR ** (attempts - 1), _MOST_S) * (1 - _JITTER + 2 * _JITTER * random)
    return max(pause, min(asked_s or 0.0, _MOST_S))


class Outcome(Enum):
    """What a try came to."""

    DELIVERED = "delivered"
    FAILED = "failed"  # worth another try, while there are some
    UNWANTED = "unwanted"  # the receiver wants no more of them


def outcome_of(status_code: int | None) -> Outcome:
    """Judge a receiver's answer, None for no answer: only 2xx is success, and redirects are not followed."""
    if status_code == 410:
        return Outcome.UNWANTED
    return Outcome.DELIVERED if status_code is not None and 200 <= status_code < 300 else Outcome.FAILED
