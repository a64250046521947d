"""Events of tasks in Redis: an append-only stream per task, told live to every process that follows it.

Guarantees: sequence numbers of one task rise without gap or repeat, whoever writes. An append names its
attempt and the next sequence number; it is refused once a newer attempt has opened the stream (the fence)
or when another entry has the number, so a stale worker can't write into a stream that moved on. Opening and
appending may be repeated, as they are when a connection broke before the answer: once done, they are done.
What Redis loses, Postgres still knows: states and results live there; a reader that finds a gap is told so.

Shapes: entry id `<sequence>-0`; fields t (event type), d (JSON data), k (token ids, little-endian uint32).
Beside each stream stands a hash: field `a` is the fence, every other field names a process that follows. Such a
process hears on a channel of its own: one message for all that was appended in one round trip, a line an entry,
`<stream> <sequence> <type> <data>`. Sequence 1 is always `task.queued` and is never stored.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError

from schemas.events import DELTA
from storage.limits import Reserved, queue_give_back

_NO_ATTEMPT = 2**31 - 1  # above every attempt number: who ends a task from outside fences all of them off
FIRST_STORED = 2  # 1 is task.queued, which every reader derives from the task row

# For each entry: look at the fence, append, note who follows; at the end tell each of those once. Returns the places
# of the refused entries. XADD itself refuses a number that is not above the last: where that very entry stands, it
# was sent before and its answer lost. There is no gap because the only writer counts by ones.
_APPEND = """
local refused, lines, keys = {}, {}, {}
local function tell()
  for reader, heard in pairs(lines) do
    if redis.call('PUBLISH', ARGV[1] .. reader, table.concat(heard, '\\n')) == 0 then
      for _, key in ipairs(keys[reader]) do redis.call('HDEL', key, reader) end -- nobody is there any more
    end
  end
end
for i = 1, #KEYS, 2 do
  local a = (i - 1) / 2 * 6 + 1
  local attempt, sequence = tonumber(ARGV[a + 1]), ARGV[a + 2]
  local fence, readers = 0, {}
  local about = redis.call('HGETALL', KEYS[i + 1])
  for f = 1, #about, 2 do
    if about[f] == 'a' then fence = tonumber(about[f + 1]) else readers[#readers + 1] = about[f] end
  end
  if fence > attempt then
    refused[#refused + 1] = (i - 1) / 2
  else
    local added
    if ARGV[a + 5] == '' then
      added = redis.pcall('XADD', KEYS[i], sequence .. '-0', 't', ARGV[a + 3], 'd', ARGV[a + 4])
    else
      added = redis.pcall('XADD', KEYS[i], sequence .. '-0', 't', ARGV[a + 3], 'd', ARGV[a + 4],
                          'k', ARGV[a + 5])
    end
    if type(added) == 'table' and added.err then
      if string.find(added.err, 'equal or smaller') then
        local there = redis.call('XRANGE', KEYS[i], sequence .. '-0', sequence .. '-0')[1]
        if not there or there[2][2] ~= ARGV[a + 3] or there[2][4] ~= ARGV[a + 4] then
          refused[#refused + 1] = (i - 1) / 2
        end
      else
        tell()
        return redis.error_reply(added.err)
      end
    else
      if ARGV[a + 6] ~= '0' then
        redis.call('EXPIRE', KEYS[i], ARGV[a + 6])
        redis.call('EXPIRE', KEYS[i + 1], ARGV[a + 6]) -- a fence must not end before a long task does
      end
      for _, reader in ipairs(readers) do
        lines[reader], keys[reader] = lines[reader] or {}, keys[reader] or {}
        local heard, of = lines[reader], keys[reader]
        heard[#heard + 1] = KEYS[i] .. ' ' .. sequence .. ' ' .. ARGV[a + 3] .. ' ' .. ARGV[a + 4]
        of[#of + 1] = KEYS[i + 1]
      end
    end
  end
end
tell()
return refused
"""

# Raising the fence and reading what earlier attempts wrote is one step: nothing can be appended between.
_OPEN = """
local fence = tonumber(redis.call('HGET', KEYS[2], 'a') or '0')
if fence > tonumber(ARGV[1]) then return false end
redis.call('HSET', KEYS[2], 'a', ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return redis.call('XRANGE', KEYS[1], '-', '+')
"""

_FOLLOWED_S = 120  # a note on a task that was not begun lasts this long unless it is written again
_FOLLOW_BATCH = 1000  # per round trip
_EXPIRE_EVERY = 16  # deltas: the time that a stream is kept is far longer than they take


@dataclass(frozen=True, slots=True)
class Event:
    """One stream entry."""

    sequence: int
    type: str
    data: bytes  # JSON object
    token_ids: tuple[int, ...] = ()  # emitted with it


@dataclass(frozen=True, slots=True)
class Result:
    """What stands in Redis before anyone hears that a task ended."""

    response: str | None  # for polling callers, who need not ask Postgres then
    reserved: Reserved | None = None  # of its token limits; what it did not use goes back
    used_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Append:
    """One entry to write."""

    task_id: str
    attempt: int
    sequence: int
    type: str
    data: bytes
    token_ids: Sequence[int] = ()
    keep_s: float = 0.0  # beyond the usual time: an open task's stream must not end before the task can
    result: Result | None = None  # with the last entry


class EventStreams:
    """The streams under one key prefix.

    Raises from every method: redis.exceptions.RedisError when the server is away or full.
    """

    def __init__(self, redis: Redis, key_prefix: str, ttl_s: float) -> None:
        self._redis = redis
        self._prefix = key_prefix
        self._ttl_s = max(1, int(ttl_s))
        self._digests: dict[str, str] = {}

    def _stream(self, task_id: str) -> str:
        return f"{self._prefix}:s:{task_id}"

    def live_channel(self, reader: str) -> str:
        """Channel on which a process hears of what it follows."""
        return f"{self._prefix}:live:{reader}"

    def _fence(self, task_id: str) -> str:
        return f"{self._prefix}:f:{task_id}"

    def _result(self, task_id: str) -> str:
        return f"{self._prefix}:r:{task_id}"

    @property
    def cancel_channel(self) -> str:
        """Channel on which ids of tasks to stop are published: quicker than the lease, never the truth."""
        return f"{self._prefix}:cancel"

    async def _run(
        self, script: str, keys: list[str], arguments: list[object], after: Sequence[tuple[str, Result]] = ()
    ) -> object:
        """Run a script, `after` these results of tasks were put, in one round trip."""
        digest = self._digests.get(script)
        if digest is None:
            digest = self._digests[script] = await self._redis.script_load(script)
        try:
            if not after:
                return await self._redis.evalsha(digest, len(keys), *keys, *arguments)  # type: ignore[arg-type]
            async with self._redis.pipeline(transaction=False) as pipeline:
                for task_id, result in after:
                    self._queue_result(pipeline, task_id, result)
                pipeline.evalsha(digest, len(keys), *keys, *arguments)  # type: ignore[arg-type]
                return (await pipeline.execute())[-1]
        except NoScriptError:  # the server was restarted or flushed
            return await self._redis.eval(script, len(keys), *keys, *arguments)  # type: ignore[arg-type]

    async def open(self, task_id: str, attempt: int, *, keep_s: float = 0.0) -> list[Event] | None:
        """Fence off earlier attempts and return what they wrote; None when a newer attempt came first."""
        entries = await self._run(
            _OPEN, [self._stream(task_id), self._fence(task_id)], [attempt, self._ttl_s + int(keep_s)]
        )
        if entries is None:
            return None
        return [
            _parse(entry_id, _pairs(fields))
            for entry_id, fields in cast(list[tuple[bytes, list[bytes]]], entries)
        ]

    async def append(self, entries: Sequence[Append]) -> list[Append]:
        """Append entries of any tasks and tell who follows, in one round trip; return those that were refused.

        Their results are put before it. May be repeated, but that unused tokens are given back each time.
        """
        keys: list[str] = []
        ends: list[tuple[str, Result]] = []
        arguments: list[object] = [self.live_channel("")]
        for entry in entries:
            keys += (self._stream(entry.task_id), self._fence(entry.task_id))
            tokens = struct.pack(f"<{len(entry.token_ids)}I", *entry.token_ids) if entry.token_ids else b""
            renews = entry.type != DELTA or entry.sequence % _EXPIRE_EVERY == FIRST_STORED
            ttl_s = self._ttl_s + int(entry.keep_s) if renews else 0
            arguments += (entry.attempt, entry.sequence, entry.type, entry.data, tokens, ttl_s)
            if entry.result is not None:
                ends.append((entry.task_id, entry.result))
        refused = cast(list[int], await self._run(_APPEND, keys, arguments, after=ends))
        return [entries[i] for i in refused]

    async def follow(self, reader: str, task_ids: Sequence[str]) -> None:
        """Note that a process follows these tasks: it hears of whatever is appended from now on."""
        for at in range(0, len(task_ids), _FOLLOW_BATCH):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for task_id in task_ids[at : at + _FOLLOW_BATCH]:
                    key = self._fence(task_id)
                    pipeline.hset(key, reader, "1")
                    pipeline.expire(key, _FOLLOWED_S, nx=True)  # GT takes a key without an end for longer
                    pipeline.expire(key, _FOLLOWED_S, gt=True)
                await pipeline.execute()

    async def unfollow(self, reader: str, task_id: str) -> None:
        """Take the note back."""
        await self._redis.hdel(self._fence(task_id), reader)

    def parse_live(self, message: bytes) -> Iterator[tuple[str, Event]]:
        """Read a message of a process's channel: (task id, event) of each entry."""
        skip = len(self._stream(""))
        for line in message.split(b"\n"):
            stream, sequence, kind, data = line.split(b" ", 3)
            yield stream[skip:].decode(), Event(int(sequence), kind.decode(), data)

    async def read(self, task_id: str, after: int = 0) -> list[Event]:
        """Read the stored entries with a sequence number above `after`."""
        return await self._range(task_id, after, None)

    async def first_after(self, task_id: str, after: int) -> Event | None:
        """Read the first stored entry above `after`."""
        entries = await self._range(task_id, after, 1)
        return entries[0] if entries else None

    async def last(self, task_id: str) -> Event | None:
        """Read the newest entry; None when nothing is stored, or no longer."""
        entries: Any = await self._redis.xrevrange(self._stream(task_id), count=1)
        return _parse(*entries[0]) if entries else None

    async def _range(self, task_id: str, after: int, count: int | None) -> list[Event]:
        first = f"({after}-0" if after else "-"
        entries: Any = await self._redis.xrange(self._stream(task_id), min=first, count=count)
        return [_parse(entry_id, fields) for entry_id, fields in entries]

    async def close(self, task_id: str, type: str, data: bytes) -> None:
        """End the stream of a task that no attempt holds: no attempt can append after this."""
        earlier = await self.open(task_id, _NO_ATTEMPT)
        if earlier is None or (earlier and earlier[-1].type == type):
            return  # closed before
        sequence = earlier[-1].sequence + 1 if earlier else FIRST_STORED
        await self.append([Append(task_id, _NO_ATTEMPT, sequence, type, data)])

    def _queue_result(self, pipeline: Pipeline, task_id: str, result: Result) -> None:
        if result.response is not None:
            pipeline.set(self._result(task_id), result.response, ex=self._ttl_s)
        if result.reserved is not None and result.used_tokens < result.reserved.tokens:
            unused = result.reserved.tokens - result.used_tokens
            queue_give_back(pipeline, self._prefix, result.reserved, unused)

    async def get_result(self, task_id: str) -> str | None:
        """Return the response of a final task, None once Redis no longer has it."""
        result: Any = await self._redis.get(self._result(task_id))
        return result.decode() if result is not None else None

    async def forget(self, task_ids: Sequence[str]) -> None:
        """Delete what is kept of final tasks whose results are elsewhere: streams, fences and responses."""
        kinds = (self._stream, self._fence, self._result)
        await self._redis.unlink(*(key(task_id) for task_id in task_ids for key in kinds))

    async def ask_cancel(self, task_id: str) -> None:
        """Tell all workers to stop a task now; the lease renewal tells them within a second otherwise."""
        await self._redis.publish(self.cancel_channel, task_id)


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _parse(entry_id: bytes, fields: dict[bytes, bytes]) -> Event:
    tokens = fields.get(b"k", b"")
    return Event(
        sequence=int(entry_id.split(b"-", 1)[0]),
        type=fields[b"t"].decode(),
        data=fields[b"d"],
        token_ids=struct.unpack(f"<{len(tokens) // 4}I", tokens),
    )
