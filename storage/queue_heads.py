"""What waits to be sent to the broker, read from its heads: the cost is that of the groups, not of the depth.

A group is one tenant's waiting tasks of one lane. Groups are found by skipping along an index, and each is read
for as many tasks as may be sent now.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from core.lanes import Lane, LengthClass, Priority


@dataclass(frozen=True, slots=True)
class Group:
    """One tenant's waiting tasks of one lane."""

    lane: Lane
    tenant_id: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting task."""

    id: str
    group: Group
    tokens: int  # prompt and maximum output
    max_output_tokens: int
    rank: float  # seconds since the epoch
    age_s: float
    remaining_s: float  # to the deadline
    prefix_key: int | None
    traceparent: str | None
    turned_back: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Tasks of one lane and tenant that run on a worker, or that the broker has (`worker` None)."""

    lane: Lane
    tenant_id: str
    worker: str | None
    tasks: int
    tokens: int


_READY = """state = 'queued' AND published_at IS NULL
  AND (attempt > 0 OR created_at < now() - make_interval(secs => :older_s))"""
_COLUMNS = """t.id, t.prompt_tokens + t.max_output_tokens AS tokens, t.max_output_tokens,
  CAST(extract(epoch FROM t.rank_at) AS float8) AS rank,
  CAST(extract(epoch FROM now() - t.created_at) AS float8) AS age_s,
  CAST(extract(epoch FROM t.deadline_at - now()) AS float8) AS remaining_s, t.prefix_key, t.traceparent,
  t.turned_back"""

_GROUPS = sa.text(f"""
WITH RECURSIVE g AS (
  (SELECT model, priority, tenant_id, length_class FROM tasks t WHERE {_READY}
   ORDER BY model, priority, tenant_id, length_class LIMIT 1)
  UNION ALL
  SELECT n.* FROM g, LATERAL (
    SELECT model, priority, tenant_id, length_class FROM tasks t WHERE {_READY}
      AND (t.model, t.priority, t.tenant_id, t.length_class) > (g.model, g.priority, g.tenant_id, g.length_class)
    ORDER BY t.model, t.priority, t.tenant_id, t.length_class LIMIT 1) n
)
SELECT * FROM g
""")

_HEADS = sa.text(f"""
SELECT g.model, g.priority, g.tenant_id, g.length_class, h.*
FROM unnest(CAST(:models AS text[]), CAST(:priorities AS text[]), CAST(:tenants AS text[]), CAST(:classes AS text[]),
            CAST(:limits AS int[])) WITH ORDINALITY AS g(model, priority, tenant_id, length_class, most, place),
LATERAL (
  SELECT {_COLUMNS} FROM tasks t WHERE {_READY} AND t.model = g.model AND t.priority = g.priority
    AND t.tenant_id = g.tenant_id AND t.length_class = g.length_class ORDER BY t.rank_at, t.id LIMIT g.most) h
ORDER BY g.place, h.rank, h.id
""")

_MATES = sa.text(f"""
SELECT g.model, g.priority, g.tenant_id, g.length_class, h.*
FROM unnest(CAST(:models AS text[]), CAST(:priorities AS text[]), CAST(:tenants AS text[]), CAST(:classes AS text[]),
            CAST(:limits AS int[]), CAST(:prefixes AS bigint[])) WITH ORDINALITY
  AS g(model, priority, tenant_id, length_class, most, prefix, place),
LATERAL (
  SELECT {_COLUMNS} FROM tasks t WHERE {_READY} AND t.prefix_key IS NOT NULL AND t.model = g.model
    AND t.tenant_id = g.tenant_id AND t.length_class = g.length_class AND t.prefix_key = g.prefix
    AND t.priority = g.priority
  ORDER BY t.rank_at, t.id LIMIT g.most) h
ORDER BY g.place, h.rank, h.id
""")

_OLDEST = sa.text(f"""
SELECT t.model, t.priority, t.tenant_id, t.length_class, {_COLUMNS} FROM tasks t
WHERE {_READY} AND (t.model, t.length_class) IN (
  SELECT * FROM unnest(CAST(:models AS text[]), CAST(:classes AS text[])))
  AND t.tenant_id <> ALL(CAST(:without AS text[]))
ORDER BY t.id LIMIT :limit
""")

_IN_FLIGHT = sa.text("""
SELECT model, priority, length_class, tenant_id, worker, count(*) AS tasks,
  sum(prompt_tokens + max_output_tokens) AS tokens
FROM tasks WHERE state IN ('in_progress', 'cancelling') GROUP BY 1, 2, 3, 4, 5
UNION ALL
SELECT model, priority, length_class, tenant_id, NULL, count(*), sum(prompt_tokens + max_output_tokens)
FROM tasks WHERE state = 'queued' AND published_at IS NOT NULL GROUP BY 1, 2, 3, 4
""")


def _lane_of(row: sa.Row[tuple[object, ...]]) -> Lane:
    return Lane(row.model, LengthClass(row.length_class), Priority(row.priority))


def _waiting_of(row: sa.Row[tuple[object, ...]]) -> Waiting:
    group = Group(_lane_of(row), row.tenant_id)
    return Waiting(
        id=row.id,
        group=group,
        tokens=row.tokens,
        max_output_tokens=row.max_output_tokens,
        rank=row.rank,
        age_s=row.age_s,
        remaining_s=row.remaining_s,
        prefix_key=row.prefix_key,
        traceparent=row.traceparent,
        turned_back=row.turned_back,
    )


async def find_groups(connection: AsyncConnection, *, older_s: float) -> list[Group]:
    """List the groups that have waited for longer than that, or were tried before."""
    rows = await connection.execute(_GROUPS, {"older_s": older_s})
    return [Group(_lane_of(row), row.tenant_id) for row in rows]


def _arrays(groups: Sequence[Group], limits: Sequence[int]) -> dict[str, list[object]]:
    return {
        "models": [group.lane.model for group in groups],
        "priorities": [group.lane.priority.value for group in groups],
        "tenants": [group.tenant_id for group in groups],
        "classes": [group.lane.length_class.value for group in groups],
        "limits": list(limits),
    }


async def read_heads(
    connection: AsyncConnection, groups: Sequence[Group], limits: Sequence[int], *, older_s: float
) -> list[Waiting]:
    """Read each group's lowest ranks, group by group."""
    rows = await connection.execute(_HEADS, {**_arrays(groups, limits), "older_s": older_s})
    return [_waiting_of(row) for row in rows]


async def read_mates(
    connection: AsyncConnection,
    groups: Sequence[Group],
    prefixes: Sequence[int],
    limits: Sequence[int],
    *,
    older_s: float,
) -> list[Waiting]:
    """Read each group's lowest ranks of one prefix."""
    values = {**_arrays(groups, limits), "prefixes": list(prefixes), "older_s": older_s}
    return [_waiting_of(row) for row in await connection.execute(_MATES, values)]


async def read_oldest(
    connection: AsyncConnection,
    groups: Sequence[Group],
    *,
    older_s: float,
    limit: int,
    without: Sequence[str] = (),
) -> list[Waiting]:
    """Read what was accepted first in the lanes of these groups, whoever's it is but for tenants `without`."""
    lanes = sorted({(group.lane.model, group.lane.length_class.value) for group in groups})
    values = {
        "models": [model for model, _ in lanes],
        "classes": [length_class for _, length_class in lanes],
        "older_s": older_s,
        "limit": limit,
        "without": list(without),
    }
    return [_waiting_of(row) for row in await connection.execute(_OLDEST, values)]


async def read_in_flight(connection: AsyncConnection) -> list[InFlight]:
    """Count what runs and what the broker has."""
    rows = await connection.execute(_IN_FLIGHT)
    return [
        InFlight(_lane_of(row), row.tenant_id, row.worker, row.tasks, int(row.tokens or 0)) for row in rows
    ]
