"""Ids: a prefix naming the kind, then 26 characters that sort by time (48-bit ms, 80 random bits)."""

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_DASHED = frozenset({"file"})  # as OpenAI writes them


def _head(prefix: str) -> str:
    return prefix + ("-" if prefix in _DASHED else "_")


def make_id(prefix: str, now_ms: int, entropy: bytes) -> str:
    """Build an id such as `task_01jd…`. Raises: ValueError unless `entropy` has 10 bytes."""
    if len(entropy) != 10:
        raise ValueError(f"an id takes 10 random bytes, not {len(entropy)}")
    number = (now_ms & (1 << 48) - 1) << 80 | int.from_bytes(entropy)
    characters = [_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5)]
    return _head(prefix) + "".join(characters)


def looks_like_id(prefix: str, text: str) -> bool:
    """Say whether `text` could be an id of that kind: saves a look-up, proves nothing."""
    body = text[len(prefix) + 1 :]
    return text.startswith(_head(prefix)) and len(body) == 26 and all(c in _ALPHABET for c in body)


def created_ms(id_text: str) -> int:
    """Return when an id was made, in ms since the epoch. Raises: ValueError for what is no id."""
    number = 0
    for character in id_text[-26:]:
        number = number << 5 | _ALPHABET.index(character)
    return number >> 80
