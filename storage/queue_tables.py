"""Counts of the queue: what waits, what tenants got, how fast models are.

Triggers on `tasks` add a row of `queue_deltas` for each move into or out of `queued` and for each end, whoever
writes it and in the same transaction; the control process folds them into the others. A counter that writers
updated in place would make them wait for one another.
"""

import sqlalchemy as sa

from storage.tables import metadata

queue_deltas = sa.Table(
    "queue_deltas",
    metadata,
    *(sa.Column(name, sa.Text, nullable=False) for name in ("model", "priority", "length_class")),
    sa.Column("tenant_id", sa.Text, nullable=False),
    sa.Column("tasks", sa.Integer, nullable=False),  # change of what is queued
    sa.Column("tokens", sa.BigInteger, nullable=False),  # likewise, prompt and maximum output
    sa.Column("spent_tokens", sa.BigInteger, nullable=False, server_default="0"),  # really, at an end
    sa.Column("retired_tokens", sa.BigInteger, nullable=False, server_default="0"),  # as it was queued with
    sa.Column("finished", sa.Integer, nullable=False, server_default="0"),
    sa.Column("output_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("max_output_tokens", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("run_s", sa.Float, nullable=False, server_default="0"),
)

backlogs = sa.Table(
    "backlogs",
    metadata,
    *(
        sa.Column(name, sa.Text, primary_key=True)
        for name in ("model", "priority", "length_class", "tenant_id")
    ),
    sa.Column("tasks", sa.Integer, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)

tenant_shares = sa.Table(
    "tenant_shares",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("tenant_id", sa.Text, primary_key=True),
    sa.Column("served", sa.Float, nullable=False, server_default="0"),  # virtual tokens: core.fair_share
)

model_rates = sa.Table(
    "model_rates",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("tokens_per_s", sa.Float),  # prompt + maximum output, of what left; null: not measured yet
    sa.Column("finished_per_s", sa.Float, nullable=False, server_default="0"),
    sa.Column("run_s", sa.Float),  # mean, from claim to end
    sa.Column("output_token_s", sa.Float),  # run time an output token
    sa.Column("output_share", sa.Float),  # output really made, of the maximum
    sa.Column("slots", sa.Integer, nullable=False, server_default="0"),  # of the ready workers
    sa.Column("measured_at", sa.TIMESTAMP(True), nullable=False, server_default=sa.func.now()),
)
