"""Keyed hashes of texts that are not kept: who has the key can tell whether a text is the one there was.

HMAC-SHA256 in two halves, so that a database can compute it with its own sha256 and no text has to leave it:
sha256(outer || sha256(inner || text)). Source: RFC 2104.
"""

import hashlib
import hmac

_BLOCK = 64


def derive_key(pepper: bytes, purpose: str) -> bytes:
    """Derive a key of its own for a purpose."""
    return hmac.digest(pepper, f"headrace {purpose}".encode(), "sha256")


def pads_of(key: bytes) -> tuple[bytes, bytes]:
    """Return the inner and the outer pad of a key."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)


def digest_of(text: str, key: bytes) -> bytes:
    """Return a text's keyed hash."""
    return hmac.digest(key, text.encode(), "sha256")
