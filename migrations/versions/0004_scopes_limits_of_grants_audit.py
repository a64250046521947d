"""scopes and uses of keys, disabled tenants and their retention, limits of grants, the audit log."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("disabled_at", sa.TIMESTAMP(timezone=True), nullable=True))
    op.add_column("tenants", sa.Column("retention_s", sa.Float(), nullable=True))
    op.add_column("tenants", sa.Column("store", sa.Boolean(), server_default=sa.text("true"), nullable=False))
    op.create_check_constraint(op.f("ck_tenants_retention"), "tenants", "retention_s > 0")

    op.add_column(
        "api_keys",
        sa.Column(
            "scopes",
            sa.ARRAY(sa.Text()),
            server_default=sa.text("ARRAY['read', 'submit']::text[]"),
            nullable=False,
        ),
    )
    op.add_column("api_keys", sa.Column("last_used_at", sa.TIMESTAMP(timezone=True), nullable=True))
    op.add_column("api_keys", sa.Column("replaced_by", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_api_keys_scopes"),
        "api_keys",
        "scopes <> '{}' AND scopes <@ ARRAY['admin', 'read', 'submit']::text[]",
    )

    for name in ("max_prompt_tokens", "max_output_tokens", "max_open_tasks"):
        op.add_column("grants", sa.Column(name, sa.Integer(), nullable=True))
    for name in ("priorities", "endpoints"):
        op.add_column("grants", sa.Column(name, sa.ARRAY(sa.Text()), nullable=True))
    op.create_check_constraint(
        op.f("ck_grants_limits_positive"),
        "grants",
        "max_prompt_tokens > 0 AND max_output_tokens > 0 AND max_open_tasks > 0",
    )
    op.create_check_constraint(
        op.f("ck_grants_priorities"),
        "grants",
        "priorities <> '{}' AND priorities <@ ARRAY['batch', 'interactive', 'standard']::text[]",
    )
    op.create_check_constraint(op.f("ck_grants_endpoints"), "grants", "endpoints <> '{}'")

    op.create_table(
        "audit_entries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.TIMESTAMP(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("actor_key_id", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=True),
        sa.Column("before", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("after", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index("ix_audit_entries_tenant", "audit_entries", ["tenant_id", "id"], unique=False)
    op.execute("""
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$
    """)
    op.execute("""
        CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()
    """)
