"""Taking an upload: from the form's pieces straight into the blob store."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from fastapi import Request

from api.multipart import Begin, Data, read_parts
from api.state import ApiState
from core.files import Purpose
from schemas.errors import RequestError
from schemas.files import Upload, read_upload
from services.new_id import new_id
from services.store_file import finish_file, storing
from storage.blobs import BlobWriter
from storage.files import NewFile, StoredFile

_FORM_BYTES = 64 * 1024  # of everything in a form that is not the file
_MAX_NAME = 512  # characters


async def take_upload(state: ApiState, tenant_id: str, request: Request) -> StoredFile:
    """Store the file of a form. Raises: RequestError 400, 408, 413, 415; ClientGoneError; nothing is left then."""
    upload = _Upload(state, tenant_id)
    try:
        async with asyncio.timeout(state.settings.upload_s):
            return await upload.take(request)
    except TimeoutError as error:
        raise RequestError(
            408,
            f"The upload took more than {state.settings.upload_s:g} s.",
            "upload_timeout",
            headers={"x-should-retry": "false"},
        ) from error


class _Upload:
    """One upload."""

    def __init__(self, state: ApiState, tenant_id: str) -> None:
        self._state, self._tenant_id = state, tenant_id
        self._settings = state.settings
        self._file_id = new_id("file")
        self._fields: dict[str, bytearray] = {}
        self._form_bytes = 0
        self._filename: str | None = None

    async def take(self, request: Request) -> StoredFile:
        """See `take_upload`."""
        field: bytearray | None = None  # the newest part, when it is not the file
        writer: BlobWriter | None = None
        async with AsyncExitStack() as stack:
            async for event in read_parts(request, self._settings.max_file_bytes + _FORM_BYTES):
                if isinstance(event, Begin) and event.name == "file":
                    if writer is not None:
                        raise RequestError(400, "A form holds one file.", "invalid_value", "file")
                    field, self._filename = None, _clean(event.filename)
                    writer = await stack.enter_async_context(self._storing())
                elif isinstance(event, Begin):
                    field = self._fields.setdefault(event.name, bytearray())
                elif isinstance(event, Data) and field is not None:
                    self._add(field, event.data)
                elif isinstance(event, Data) and writer is not None:
                    await writer.write(event.data)
                    self._bound(writer.bytes)
            if writer is None:
                raise RequestError(
                    400, "Missing required parameter: file.", "missing_required_parameter", "file"
                )
            upload = read_upload({name: bytes(value).decode() for name, value in self._fields.items()})
            self._check(upload, writer.bytes)
        return await self._finish(upload, writer.bytes)

    def _storing(self) -> AbstractAsyncContextManager[BlobWriter]:
        # the purpose may stand behind the file: until then any that is removed without ceremony will do
        new = NewFile(self._file_id, self._tenant_id, Purpose.USER_DATA, str(self._filename), None)
        return storing(self._state.database, self._state.blobs, new)

    def _add(self, field: bytearray, data: bytes) -> None:
        self._form_bytes += len(data)
        if self._form_bytes > _FORM_BYTES:
            raise RequestError(413, "The form's fields are too large.", "request_too_large")
        field += data

    def _bound(self, size_bytes: int) -> None:
        batch = bytes(self._fields.get("purpose", b"")) == Purpose.BATCH.encode()
        limit = self._settings.max_batch_file_bytes if batch else self._settings.max_file_bytes
        if size_bytes > limit:
            raise RequestError(413, f"The file is larger than {limit} bytes.", "file_too_large", "file")

    def _check(self, upload: Upload, size_bytes: int) -> None:
        self._bound(size_bytes)
        if upload.purpose is Purpose.BATCH and not str(self._filename).lower().endswith(".jsonl"):
            raise RequestError(400, "A file of purpose batch is named *.jsonl.", "invalid_value", "file")

    async def _finish(self, upload: Upload, size_bytes: int) -> StoredFile:
        expires_s: float | None = upload.expires_after.seconds if upload.expires_after else None
        if expires_s is None and upload.purpose is Purpose.BATCH:
            expires_s = self._settings.batch_file_ttl_s
        stored = await finish_file(
            self._state.database,
            self._file_id,
            size_bytes=size_bytes,
            purpose=upload.purpose,
            expires_after_s=expires_s,
        )
        if stored is None:
            raise TimeoutError
        return stored


def _clean(filename: str | None) -> str:
    """A name that can be stored and sent back in a header. Raises: RequestError 400."""
    name = (filename or "").replace("\\", "/").rpartition("/")[2]
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        raise RequestError(
            400,
            f"The file needs a printable name of at most {_MAX_NAME} characters.",
            "invalid_value",
            "file",
        )
    return name
