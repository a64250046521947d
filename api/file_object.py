"""The file as its owner sees it."""

from typing import Any

from storage.files import StoredFile


def file_object(file: StoredFile) -> dict[str, Any]:
    """Build the wire form."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": int(file.expires_at.timestamp()) if file.expires_at else None,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }
