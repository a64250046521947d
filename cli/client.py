"""A client of the HTTP API for commands: chat, tasks and their events, typed, with the errors in words.

    async with Client(api_url, api_key) as client:
        task = await client.submit(chat_body("some-model", "Hello"))
        task = await client.wait(task.id)

Units: `*_s` seconds.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import orjson
from pydantic import BaseModel, ValidationError

from cli.answers import Event, Models, Task
from core.lanes import Priority
from schemas.events import FINAL_STATES

CHAT_URL = "/v1/chat/completions"
_TRIES = 4  # of a request that found no server or no room
_BACKOFF_S = 0.5
_MAX_PAUSE_S = 10.0
_PASSING = (429, 502, 503, 504)  # a proxy says some of them while a server starts again


Answer = TypeVar("Answer", bound=BaseModel)


class ClientError(Exception):
    """A request that got no answer, or not a good one; the message is for whoever ran the command."""


class UnreachableError(ClientError):
    """Nothing answers at the API's address, or the connection broke."""


class ApiError(ClientError):
    """The API refused or failed."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(f"{message} ({status}{f', {code}' if code else ''})")
        self.status, self.code = status, code


class GoneError(ApiError):
    """What was asked for is no longer kept."""


@dataclass(slots=True)
class ChatStream:
    """A streamed answer: iterate over `pieces`, once."""

    task_id: str
    pieces: AsyncIterator[str]


def chat_body(model: str, prompt: str, *, max_tokens: int = 64, temperature: float = 0) -> dict[str, Any]:
    """Build the body of a chat completion with one user message."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": temperature,
    }


@dataclass
class Client:
    """See the module. Every method raises ClientError."""

    api_url: str
    api_key: str = field(repr=False)
    patience_s: float = 5.0  # with a server that is away, while following events
    timeout_s: float = 60.0  # without a byte from the server, which sends keep-alives more often

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(
            base_url=self.api_url,
            headers={"Authorization": f"Bearer {self.api_key}"},
            timeout=httpx.Timeout(self.timeout_s, connect=5.0, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # a proxy for the web must not get the local stack's key
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def models(self) -> list[str]:
        """Names of the models that the key may use."""
        return [model.id for model in read_answer(Models, await self._request("GET", "/v1/models")).data]

    async def submit(
        self,
        body: dict[str, Any],
        *,
        url: str = CHAT_URL,
        priority: Priority = Priority.STANDARD,
        deadline_s: float | None = None,
        metadata: dict[str, str] | None = None,
        webhook: str | None = None,
    ) -> Task:
        """Submit a request of a route as a task. Trying again can't submit it twice: it carries a key."""
        asked: dict[str, Any] = {"url": url, "body": body, "priority": priority}
        if webhook is not None:
            asked["webhook"] = webhook
        if deadline_s is not None:
            asked["deadline_s"] = deadline_s
        if metadata:
            asked["metadata"] = metadata
        key = {"Idempotency-Key": secrets.token_urlsafe(16)}
        return _read_task(await self._request("POST", "/v1/tasks", json=asked, headers=key))

    async def task(self, task_id: str) -> Task:
        """Read a task."""
        return _read_task(await self._request("GET", f"/v1/tasks/{task_id}"))

    async def cancel(self, task_id: str) -> Task:
        """Ask for a task to be cancelled; one that is final stays as it is."""
        return _read_task(await self._request("POST", f"/v1/tasks/{task_id}/cancel"))

    async def poll(
        self, task_id: str, *, every_s: float, on_look: Callable[[Task], None] | None = None
    ) -> Task:
        """Read a task again and again until it is final; `on_look` sees what each look found."""
        while True:
            task = await self.task(task_id)
            if on_look:
                on_look(task)
            if task.final:
                return task
            await asyncio.sleep(every_s)

    async def wait(self, task_id: str) -> Task:
        """Follow a task to its end and read it."""
        try:
            async for _ in self.events(task_id):
                pass
        except GoneError:
            pass  # its events are no longer kept: it ended long ago
        return await self.poll(task_id, every_s=1.0)

    async def events(self, task_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield a task's events above the cursor up to the final one, going on after lost connections."""
        away_since: float | None = None
        while True:
            try:
                url = f"/v1/tasks/{task_id}/events"
                async with self._stream("GET", url, params={"starting_after": after}) as response:
                    away_since = None
                    if response.status_code == HTTPStatus.NO_CONTENT:
                        return
                    async for data in _server_sent(response):
                        event = Event.model_validate_json(data)
                        after = event.sequence
                        yield event
                        if event.type in FINAL_STATES:
                            return
            except (UnreachableError, ApiError) as error:
                passing = isinstance(error, UnreachableError) or error.status in _PASSING
                away_since = away_since or time.monotonic()
                if not passing or time.monotonic() - away_since > self.patience_s:
                    raise
            await asyncio.sleep(_BACKOFF_S)  # the server went away or ended the stream early

    @asynccontextmanager
    async def chat(self, body: dict[str, Any]) -> AsyncIterator[ChatStream]:
        """Ask for a streamed chat completion; leaving early stops its generation."""
        asked = {**body, "stream": True}
        async with (
            self._stream("POST", CHAT_URL, json=asked) as response,
            aclosing(_pieces(response)) as pieces,
        ):
            yield ChatStream(response.headers.get("X-Headrace-Task-Id", ""), pieces)

    async def _request(self, method: str, url: str, **options: Any) -> httpx.Response:
        # Every request made here may be made twice: reads, cancels, and submits with an idempotency key.
        tries = 0
        while True:
            tries += 1
            pause_s = _BACKOFF_S * tries
            try:
                response = await self._http.request(method, url, **options)
                if response.status_code not in _PASSING or tries >= _TRIES:
                    await _refuse(response)
                    return response
                pause_s = _retry_after_s(response, pause_s)
            except httpx.TransportError as error:
                if tries >= _TRIES:
                    raise self._unreachable(error) from error
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def _stream(self, method: str, url: str, **options: Any) -> AsyncIterator[httpx.Response]:
        try:
            async with self._http.stream(method, url, **options) as response:
                await _refuse(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> UnreachableError:
        return UnreachableError(f"no answer from {self.api_url}: {error or type(error).__name__}")


def read_answer(kind: type[Answer], response: httpx.Response) -> Answer:
    """Read an answer. Raises: ClientError when it is none of Headrace's."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise ClientError(f"{response.url} gave an answer that isn't Headrace's: {error}") from error


def _read_task(response: httpx.Response) -> Task:
    return read_answer(Task, response).model_copy(update={"raw": response.text})


async def _refuse(response: httpx.Response) -> None:
    """Raises: ApiError unless the status says success."""
    if response.is_success:
        return
    text = (await response.aread()).decode(errors="replace")
    try:
        error = orjson.loads(text)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError):
        message, code = text[:200] or response.reason_phrase, None
    kind = GoneError if response.status_code == HTTPStatus.GONE else ApiError
    raise kind(response.status_code, message, code)


def _retry_after_s(response: httpx.Response, default_s: float) -> float:
    text = response.headers.get("Retry-After", "")
    return min(float(text), _MAX_PAUSE_S) if text.isdigit() else default_s


async def _server_sent(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each event; the server sends it on one line."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line[5:].strip()


async def _pieces(response: httpx.Response) -> AsyncGenerator[str, None]:
    async for data in _server_sent(response):
        if data == "[DONE]":
            return
        chunk = orjson.loads(data)
        if "error" in chunk:
            raise ApiError(response.status_code, chunk["error"]["message"], chunk["error"].get("code"))
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                yield text
    raise UnreachableError("the answer ended before it was whole")
