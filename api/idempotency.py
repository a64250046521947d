"""Which requests are one: by the `Idempotency-Key` header, else by what the official clients say of retries.

Those clients send no key, but `x-stainless-retry-count` with every request: a further try with the body of a
recent one is that one.
"""

import hashlib

from fastapi import Request

from schemas.errors import RequestError
from services.once import IdempotencyKey


def idempotency_of(request: Request, raw: bytes) -> IdempotencyKey | None:
    """Return the request's key; None when nothing says that it may come twice. Raises: RequestError 400."""
    digest = hashlib.sha256(f"{request.method} {request.url.path}\n".encode() + raw)
    key = request.headers.get("idempotency-key")
    if key is not None:
        if not 0 < len(key) <= 255:
            raise RequestError(
                400, "An Idempotency-Key has 1 to 255 characters.", "invalid_value", "Idempotency-Key"
            )
        return IdempotencyKey(key, digest.digest())
    count = request.headers.get("x-stainless-retry-count", "")
    if not count.isdigit():
        return None
    # no header can hold this name: control characters are not sent in one
    return IdempotencyKey(f"\x01{digest.hexdigest()}", digest.digest(), again=int(count) > 0)
