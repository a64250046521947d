"""a key's first id: what it is counted under stays the same when it is rotated."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_FILL = """
WITH RECURSIVE chain AS (
  SELECT id, id AS first_id, replaced_by FROM api_keys k
  WHERE NOT EXISTS (SELECT 1 FROM api_keys b WHERE b.replaced_by = k.id)
  UNION ALL
  SELECT k.id, c.first_id, k.replaced_by FROM chain c JOIN api_keys k ON k.id = c.replaced_by
)
UPDATE api_keys k SET first_id = chain.first_id FROM chain WHERE chain.id = k.id AND chain.first_id <> k.id
"""


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("first_id", sa.Text(), nullable=True))
    op.execute(_FILL)
