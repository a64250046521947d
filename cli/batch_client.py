"""Files and batches over HTTP, for commands. Every method raises ClientError."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from cli.client import Client, read_answer

FINAL = frozenset({"failed", "completed", "expired", "cancelled"})


class Counts(BaseModel):
    """OpenAI's request_counts."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchUsage(BaseModel):
    """OpenAI's usage of a batch."""

    input_tokens: int = 0
    output_tokens: int = 0


class LineProblem(BaseModel):
    """Why an input file is no batch."""

    code: str
    line: int | None = None
    message: str


class Problems(BaseModel):
    """All that were told."""

    data: list[LineProblem] = Field(default_factory=list)


class BatchAnswer(BaseModel):
    """A batch as its owner sees it."""

    id: str
    status: str
    endpoint: str
    model: str | None = None
    completion_window: str
    input_file_id: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    expires_at: int
    request_counts: Counts = Field(default_factory=Counts)
    usage: BatchUsage = Field(default_factory=BatchUsage)
    cost_usd_micros: int = 0
    errors: Problems | None = None
    metadata: dict[str, str] = Field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.status in FINAL


class _Page(BaseModel):
    data: list[BatchAnswer]


class _File(BaseModel):
    id: str


class BatchClient(Client):
    """A client that knows files and batches too."""

    async def upload(self, path: Path) -> str:
        """Upload an input file; return its id. A further try sends it again: what came twice expires unused."""
        with path.open("rb") as file:
            form: dict[str, Any] = {"files": {"file": (path.name, file)}, "data": {"purpose": "batch"}}
            return read_answer(_File, await self._request("POST", "/v1/files", **form)).id

    async def create_batch(
        self, file_id: str, *, endpoint: str, window: str, metadata: dict[str, str], key: str
    ) -> BatchAnswer:
        """Create a batch; the same `key` again gives the same one."""
        body = {
            "input_file_id": file_id,
            "endpoint": endpoint,
            "completion_window": window,
            "metadata": metadata,
        }
        response = await self._request("POST", "/v1/batches", json=body, headers={"Idempotency-Key": key})
        return read_answer(BatchAnswer, response)

    async def batch(self, batch_id: str) -> BatchAnswer:
        """Read a batch."""
        return read_answer(BatchAnswer, await self._request("GET", f"/v1/batches/{batch_id}"))

    async def cancel_batch(self, batch_id: str) -> BatchAnswer:
        """Ask for a batch to be cancelled; one that is final stays as it is."""
        return read_answer(BatchAnswer, await self._request("POST", f"/v1/batches/{batch_id}/cancel"))

    async def batches(self, limit: int) -> list[BatchAnswer]:
        """List the newest batches."""
        return read_answer(_Page, await self._request("GET", "/v1/batches", params={"limit": limit})).data

    async def download(self, file_id: str, path: Path) -> None:
        """Write a file's content to a path."""
        async with self._stream("GET", f"/v1/files/{file_id}/content") as response:
            with path.open("wb") as file:
                async for block in response.aiter_bytes():
                    file.write(block)
