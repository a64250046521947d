"""/v1/files: the form of an upload, beside the file itself.

Source: OpenAI's files API.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from core.files import UPLOADABLE, Purpose
from schemas.errors import RequestError
from schemas.requests import validate
from schemas.strict import Strict

FORM_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")


class ExpiresAfter(Strict):
    """When a file ends by itself: so long after it was created."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=30 * 24 * 3600)]


class Upload(Strict):
    """The fields of an upload."""

    purpose: Annotated[Purpose, Field(strict=False)]
    expires_after: ExpiresAfter | None = None


def read_upload(fields: dict[str, str]) -> Upload:
    """Read the fields of a form. Raises: RequestError 400 naming the field."""
    for name in fields:
        if name not in FORM_FIELDS:
            raise RequestError(400, f"Unknown parameter: {name}.", "unknown_parameter", name)
    shape: dict[str, Any] = {"purpose": fields["purpose"]} if "purpose" in fields else {}
    after = {name[14:-1]: value for name, value in fields.items() if name.startswith("expires_after[")}
    if after:
        seconds = after.get("seconds", "")
        shape["expires_after"] = {**after, **({"seconds": int(seconds)} if seconds.isdecimal() else {})}
    upload = validate(Upload, shape)
    if upload.purpose not in UPLOADABLE:
        raise RequestError(
            400, f"No file of purpose {upload.purpose} is uploaded.", "invalid_value", "purpose"
        )
    return upload
