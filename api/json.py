"""JSON responses by orjson: quick, and a stored response body is put in as it is (`orjson.Fragment`)."""

from typing import Any

import orjson
from starlette.responses import Response


class JsonResponse(Response):
    """Any JSON value."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the value."""
        return orjson.dumps(content)
