"""API keys: `hr_` + 12 characters to look them up by + 32 secret ones. Stored as a keyed hash only."""

import hashlib
import hmac
from dataclasses import dataclass

PREFIX = "hr_"
_LOOKUP, _SECRET = 12, 32
_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key just made: `text` is shown once and not stored."""

    text: str
    lookup: str
    digest: bytes


def make_key(entropy: bytes, pepper: bytes) -> NewKey:
    """Build a key. Raises: ValueError unless `entropy` has 44 bytes."""
    if len(entropy) != _LOOKUP + _SECRET:
        raise ValueError(f"a key takes {_LOOKUP + _SECRET} random bytes, not {len(entropy)}")
    text = PREFIX + "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in entropy)
    return NewKey(text, lookup_of(text), digest_of(text, pepper))


def lookup_of(text: str) -> str:
    """Return the part that a key is found by; it is no secret."""
    return text[: len(PREFIX) + _LOOKUP]


def is_well_formed(text: str) -> bool:
    """Say whether a text can be a key at all."""
    return text.startswith(PREFIX) and len(text) == len(PREFIX) + _LOOKUP + _SECRET and text.isascii()


def digest_of(text: str, pepper: bytes) -> bytes:
    """Hash a key under the deployment's pepper: a stolen table alone can't be searched for keys."""
    return hmac.new(pepper, text.encode(), hashlib.sha256).digest()


def matches(text: str, pepper: bytes, digest: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(digest_of(text, pepper), digest)
