"""Pages of a list that is ordered by one column, which no two rows share."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for."""

    limit: int
    after: str | None = None  # exclusive; the value of the ordering column
    newest_first: bool = True


async def read_page(
    connection: AsyncConnection, query: "sa.Select[Any]", key: "sa.ColumnElement[str]", page: Page
) -> tuple[list[Any], bool]:
    """Read the rows of a page, and whether there are more."""
    if page.after is not None:
        query = query.where(key < page.after if page.newest_first else key > page.after)
    query = query.order_by(key.desc() if page.newest_first else key).limit(page.limit + 1)
    rows = (await connection.execute(query)).all()
    return list(rows[: page.limit]), len(rows) > page.limit
