"""order of the queue: ranks, prefixes, backlog counters, tenants' shares, models' rates."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# One row a change, added without waiting for anybody; the control process folds them into `backlogs`,
# `tenant_shares` and `model_rates`. A counter that writers update in place would make them queue for its row.
_NOTE_INSERTED = """
CREATE FUNCTION note_queue_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO queue_deltas (model, priority, length_class, tenant_id, tasks, tokens)
  SELECT model, priority, length_class, tenant_id, count(*), sum(prompt_tokens + max_output_tokens)
  FROM inserted WHERE state = 'queued' GROUP BY 1, 2, 3, 4;
  RETURN NULL;
END $$
"""
_NOTE_MOVED = """
CREATE FUNCTION note_queue_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  step int := (NEW.state = 'queued')::int - (OLD.state = 'queued')::int;
  total int := NEW.prompt_tokens + NEW.max_output_tokens;
  ran bool := NEW.finished_at IS NOT NULL AND OLD.state <> 'queued';
BEGIN
  INSERT INTO queue_deltas (model, priority, length_class, tenant_id, tasks, tokens, spent_tokens, retired_tokens,
                            finished, output_tokens, max_output_tokens, run_s)
  VALUES (NEW.model, NEW.priority, NEW.length_class, NEW.tenant_id, step, step * total,
    CASE WHEN NEW.finished_at IS NOT NULL
      THEN coalesce(NEW.usage_prompt_tokens, 0) + coalesce(NEW.usage_output_tokens, 0) ELSE 0 END,
    CASE WHEN ran THEN total ELSE 0 END, ran::int,
    CASE WHEN ran THEN coalesce(NEW.usage_output_tokens, 0) ELSE 0 END,
    CASE WHEN ran THEN NEW.max_output_tokens ELSE 0 END,
    CASE WHEN ran THEN extract(epoch FROM now() - NEW.claimed_at) ELSE 0 END);
  RETURN NULL;
END $$
"""
_NOTE_DELETED = """
CREATE FUNCTION note_queue_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO queue_deltas (model, priority, length_class, tenant_id, tasks, tokens)
  VALUES (OLD.model, OLD.priority, OLD.length_class, OLD.tenant_id, -1,
    -(OLD.prompt_tokens + OLD.max_output_tokens));
  RETURN NULL;
END $$
"""
_TRIGGERS = (
    "CREATE TRIGGER queue_inserted AFTER INSERT ON tasks REFERENCING NEW TABLE AS inserted "
    "FOR EACH STATEMENT EXECUTE FUNCTION note_queue_inserted()",
    "CREATE TRIGGER queue_moved AFTER UPDATE OF state ON tasks FOR EACH ROW "
    "WHEN (OLD.state IS DISTINCT FROM NEW.state "
    "AND (OLD.state = 'queued' OR NEW.state = 'queued' OR NEW.finished_at IS NOT NULL)) "
    "EXECUTE FUNCTION note_queue_moved()",
    "CREATE TRIGGER queue_deleted AFTER DELETE ON tasks FOR EACH ROW "
    "WHEN (OLD.state = 'queued') EXECUTE FUNCTION note_queue_deleted()",
)


def _lane() -> list[sa.Column[str]]:
    names = ("model", "priority", "length_class", "tenant_id")
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def upgrade() -> None:
    op.add_column(
        "tasks",
        sa.Column("rank_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.add_column("tasks", sa.Column("prefix_key", sa.BigInteger(), nullable=True))
    op.add_column("tenants", sa.Column("weight", sa.Float(), server_default="1", nullable=False))
    op.add_column("tenants", sa.Column("max_queued_tasks", sa.Integer(), nullable=True))
    op.add_column("tenants", sa.Column("max_queued_tokens", sa.BigInteger(), nullable=True))
    op.create_check_constraint(op.f("ck_tenants_weight"), "tenants", "weight > 0")
    for name in ("sync_start_s", "sync_finish_s", "sync_stream_s"):
        op.add_column("models", sa.Column(name, sa.Float(), nullable=True))
    op.add_column("workers", sa.Column("reserved_slots", sa.Integer(), server_default="0", nullable=False))
    op.add_column("workers", sa.Column("ceilings", sa.Text(), server_default="", nullable=False))
    op.create_table(
        "queue_deltas",
        *_lane(),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("spent_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("retired_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("finished", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("run_s", sa.Float(), server_default="0", nullable=False),
    )
    op.execute(
        "ALTER TABLE queue_deltas SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000)"
    )
    op.create_table(
        "backlogs",
        *_lane(),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("model", "priority", "length_class", "tenant_id", name=op.f("pk_backlogs")),
    )
    op.create_table(
        "tenant_shares",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("served", sa.Float(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("model", "tenant_id", name=op.f("pk_tenant_shares")),
    )
    op.create_table(
        "model_rates",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokens_per_s", sa.Float(), nullable=True),
        sa.Column("finished_per_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("run_s", sa.Float(), nullable=True),
        sa.Column("output_token_s", sa.Float(), nullable=True),
        sa.Column("output_share", sa.Float(), nullable=True),
        sa.Column("slots", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "measured_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_model_rates")),
    )
    op.drop_index("ix_tasks_queued", table_name="tasks")
    unpublished = sa.text("state = 'queued' AND published_at IS NULL")
    op.create_index(
        "ix_tasks_waiting",
        "tasks",
        ["model", "priority", "tenant_id", "length_class", "rank_at", "id"],
        postgresql_where=unpublished,
    )
    op.create_index(
        "ix_tasks_waiting_prefix",
        "tasks",
        ["model", "tenant_id", "length_class", "prefix_key", "rank_at", "id"],
        postgresql_where=sa.text("state = 'queued' AND published_at IS NULL AND prefix_key IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_published",
        "tasks",
        ["model", "length_class", "priority", "id"],
        postgresql_where=sa.text("state = 'queued' AND published_at IS NOT NULL"),
    )
    op.create_index(
        "ix_tasks_queued_deadline", "tasks", ["deadline_at"], postgresql_where=sa.text("state = 'queued'")
    )
    op.execute(
        "INSERT INTO backlogs (model, priority, length_class, tenant_id, tasks, tokens) "
        "SELECT model, priority, length_class, tenant_id, count(*), sum(prompt_tokens + max_output_tokens) "
        "FROM tasks WHERE state = 'queued' GROUP BY 1, 2, 3, 4"
    )
    for statement in (_NOTE_INSERTED, _NOTE_MOVED, _NOTE_DELETED, *_TRIGGERS):
        op.execute(statement)
