"""Tables of files and batches, as `migrations` creates them; see `storage.tables` for the rest and for units."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from core.batches import FINAL, OPEN, BatchState, LineOutcome
from core.files import FileState, Purpose
from storage.tables import created_at, metadata, one_of

files = sa.Table(
    "files",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # sorts by time; names the bytes in the blob store too
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("filename", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("state", sa.Text, nullable=False, server_default=FileState.WRITING.value),
    created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(True)),
    sa.CheckConstraint(one_of("state", FileState), name="state"),
    sa.CheckConstraint(one_of("purpose", Purpose), name="purpose"),
    sa.Index("ix_files_tenant_list", "tenant_id", "id", postgresql_where=sa.text("state = 'ready'")),
    sa.Index("ix_files_removable", "id", postgresql_where=sa.text("state <> 'ready'")),
    sa.Index("ix_files_expiring", "expires_at", postgresql_where=sa.text("state = 'ready'")),
)

batches = sa.Table(
    "batches",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),  # sorts by time
    sa.Column("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key_id", sa.ForeignKey("api_keys.id"), nullable=False),
    sa.Column("endpoint", sa.Text, nullable=False),
    sa.Column("completion_window", sa.Text, nullable=False),
    sa.Column("metadata", JSONB, nullable=False, server_default="{}"),
    sa.Column("output_ttl_s", sa.Float, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default=BatchState.VALIDATING.value),
    created_at(),
    sa.Column("expires_at", sa.TIMESTAMP(True), nullable=False),  # the deadline of its tasks
    *(sa.Column(f"{state}_at", sa.TIMESTAMP(True)) for state in BatchState if state != "validating"),
    sa.Column("errors", JSONB),  # of a failed one: [{code, line, message, param}]
    # the input, and how far it has become tasks
    sa.Column("input_file_id", sa.Text, nullable=False),
    sa.Column("input_bytes", sa.BigInteger, nullable=False),
    sa.Column("in_file_order", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("cursor_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cursor_line", sa.Integer, nullable=False, server_default="0"),
    sa.Column("model", sa.Text),  # null: not validated yet
    sa.Column("total", sa.Integer, nullable=False, server_default="0"),  # lines
    # what the results hold; the transaction that adds a part adds to these
    sa.Column("parts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("completed", sa.Integer, nullable=False, server_default="0"),
    sa.Column("failed", sa.Integer, nullable=False, server_default="0"),  # unfinished ones too
    sa.Column("unfinished", sa.Integer, nullable=False, server_default="0"),  # expired or cancelled lines
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False, server_default="0"),  # as the ledger has them
    sa.Column("cached_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("cost_usd_micros", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("output_file_id", sa.Text),
    sa.Column("error_file_id", sa.Text),
    sa.Column("webhook", sa.Text),  # the URL that is told of the end
    sa.Column("webhook_at", sa.TIMESTAMP(True)),  # when its delivery was queued
    sa.CheckConstraint(one_of("state", BatchState), name="state"),
    sa.CheckConstraint("completed + failed <= total AND unfinished <= failed", name="counts"),
    sa.CheckConstraint("cursor_bytes BETWEEN 0 AND input_bytes", name="cursor"),
    sa.Index("ix_batches_tenant_list", "tenant_id", "id"),
    sa.Index(
        "ix_batches_webhook",
        "id",
        postgresql_where=sa.text(f"webhook IS NOT NULL AND webhook_at IS NULL AND {one_of('state', FINAL)}"),
    ),
    sa.Index("ix_batches_open", "input_file_id", postgresql_where=sa.text(one_of("state", OPEN))),
)

batch_items = sa.Table(
    "batch_items",
    metadata,
    sa.Column("batch_id", sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True),  # of the input file, from 1
    sa.Column("custom_id", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text, unique=True),  # null: it never became a task
    sa.Column("refusal", sa.Text),  # JSON: why not, as its result line says it
    sa.Column("part", sa.Integer),  # of the results that holds it; null: not written yet
    sa.Column("outcome", sa.Text),  # once written
    sa.CheckConstraint(f"outcome IS NULL OR {one_of('outcome', LineOutcome)}", name="outcome"),
    sa.CheckConstraint("(part IS NULL) = (outcome IS NULL)", name="written"),
    sa.Index("ix_batch_items_unwritten", "batch_id", postgresql_where=sa.text("part IS NULL")),
)

# Pieces of a batch's results, in the blob store; put together into files at the end.
batch_parts = sa.Table(
    "batch_parts",
    metadata,
    sa.Column("batch_id", sa.ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("output_key", sa.Text),  # null: no line of this part completed
    sa.Column("error_key", sa.Text),
)
