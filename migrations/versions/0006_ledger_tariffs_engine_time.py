"""prices by priority and engine-second, ledger entries that can't change, corrections, engine time."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TARIFFS_FROZEN = """
CREATE FUNCTION tariffs_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  before tariffs := OLD;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    before.valid_until := NEW.valid_until; -- its end alone may change
    IF NEW IS DISTINCT FROM before THEN
      RAISE EXCEPTION 'a price is never changed: set a new one from a later moment' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
  END IF;
  IF EXISTS (SELECT 1 FROM ledger_entries WHERE tariff_id = OLD.id) THEN
    RAISE EXCEPTION 'this price was charged: it is kept' USING ERRCODE = 'restrict_violation';
  END IF;
  RETURN OLD;
END $$
"""
_LEDGER_FROZEN = """
CREATE FUNCTION ledger_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'ledger entries are never changed: write a correction' USING ERRCODE = 'restrict_violation';
END $$
"""


def upgrade() -> None:
    op.drop_constraint("pk_tariffs", "tariffs", type_="primary")
    op.add_column("tariffs", sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False))
    op.create_primary_key("pk_tariffs", "tariffs", ["id"])
    op.add_column("tariffs", sa.Column("version", sa.Text(), nullable=True))
    op.add_column("tariffs", sa.Column("priority", sa.Text(), nullable=True))
    op.add_column("tariffs", sa.Column("valid_until", sa.TIMESTAMP(timezone=True), nullable=True))
    op.add_column(
        "tariffs", sa.Column("engine_usd_micros", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.create_unique_constraint(
        "uq_tariffs_begin",
        "tariffs",
        ["model", "version", "priority", "valid_from"],
        postgresql_nulls_not_distinct=True,
    )
    op.drop_constraint(op.f("ck_tariffs_not_negative"), "tariffs", type_="check")
    op.create_check_constraint(
        op.f("ck_tariffs_not_negative"),
        "tariffs",
        "prompt_usd_micros >= 0 AND cached_usd_micros >= 0 AND output_usd_micros >= 0 AND engine_usd_micros >= 0",
    )
    op.create_check_constraint(op.f("ck_tariffs_ends_after_begin"), "tariffs", "valid_until > valid_from")
    op.create_check_constraint(
        op.f("ck_tariffs_priority"), "tariffs", "priority IN ('batch', 'interactive', 'standard')"
    )

    op.drop_constraint("pk_ledger_entries", "ledger_entries", type_="primary")
    op.add_column("ledger_entries", sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False))
    op.create_primary_key("pk_ledger_entries", "ledger_entries", ["id"])
    op.alter_column("ledger_entries", "task_id", nullable=True)
    op.create_unique_constraint(op.f("uq_ledger_entries_task_id"), "ledger_entries", ["task_id"])
    op.add_column("ledger_entries", sa.Column("kind", sa.Text(), server_default="task", nullable=False))
    op.add_column("ledger_entries", sa.Column("corrects", sa.Text(), nullable=True))
    op.add_column("ledger_entries", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("ledger_entries", sa.Column("tariff_id", sa.BigInteger(), nullable=True))
    op.add_column(
        "ledger_entries", sa.Column("engine_us", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.create_check_constraint(
        op.f("ck_ledger_entries_kind"),
        "ledger_entries",
        "CASE kind WHEN 'task' THEN task_id IS NOT NULL AND corrects IS NULL"
        " WHEN 'correction' THEN task_id IS NULL AND corrects IS NOT NULL AND reason IS NOT NULL ELSE false END",
    )
    op.drop_constraint(op.f("ck_ledger_entries_cost"), "ledger_entries", type_="check")
    op.create_check_constraint(
        op.f("ck_ledger_entries_cost"),
        "ledger_entries",
        "kind = 'correction' OR (cost_usd_micros >= 0 AND engine_us >= 0)",
    )
    op.create_index(
        "ix_ledger_entries_corrects",
        "ledger_entries",
        ["corrects"],
        postgresql_where=sa.text("corrects IS NOT NULL"),
    )
    op.execute(_LEDGER_FROZEN)
    op.execute(
        "CREATE TRIGGER ledger_entries_frozen BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries"
        " FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse_change()"
    )
    op.execute(_TARIFFS_FROZEN)
    op.execute(
        "CREATE TRIGGER tariffs_frozen BEFORE UPDATE OR DELETE ON tariffs"
        " FOR EACH ROW EXECUTE FUNCTION tariffs_refuse_change()"
    )

    op.add_column("tasks", sa.Column("engine_us", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("attempts", sa.Column("engine_us", sa.BigInteger(), server_default="0", nullable=False))
    op.create_table(
        "engine_time",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("started_at", sa.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("idle_us", sa.BigInteger(), nullable=False),
        sa.Column("busy_us", sa.BigInteger(), nullable=False),
        sa.Column("overhead_us", sa.BigInteger(), nullable=False),
        sa.Column("written_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("worker", "started_at", "day", name=op.f("pk_engine_time")),
    )
    op.create_index("ix_engine_time_day", "engine_time", ["day"], unique=False)
