"""What every peer writes for a job, a statement a row. Standard library only.

Units: positions $1 … in the order of each tuple's comment.
"""

PREPARE = """
DROP SCHEMA IF EXISTS peer CASCADE;
CREATE SCHEMA peer;
CREATE TABLE peer.tasks (LIKE public.tasks INCLUDING ALL);
CREATE TABLE peer.task_payloads (LIKE public.task_payloads INCLUDING ALL);
CREATE TABLE peer.attempts (LIKE public.attempts INCLUDING ALL);
CREATE TABLE peer.ledger (task_id text PRIMARY KEY, tenant_id text NOT NULL, prompt_tokens int NOT NULL,
  output_tokens int NOT NULL, cost_usd_micros bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now())
"""
REQUEST = '{"messages":[{"role":"user","content":"hello"}],"max_tokens":1}'
RESPONSE = (
    '{"choices":[{"index":0,"message":{"role":"assistant","content":"water"},"finish_reason":"length"}]}'
)

# a transaction each
PRODUCE = (
    """INSERT INTO peer.tasks (id, tenant_id, key_id, model, url, priority, length_class, max_attempts,
       prompt_tokens, max_output_tokens, deadline_at) VALUES ($1, 'tenant', 'key', 'model', '/v1/chat/completions',
       'standard', 'short', 3, 8, 1, now() + interval '1 day')""",
    "INSERT INTO peer.task_payloads (task_id, request) VALUES ($1, '" + REQUEST + "')",
)
CLAIM = (
    """UPDATE peer.tasks SET state = 'in_progress', attempt = 1, worker = 'w', claimed_at = now(), started_at = now(),
       lease_expires_at = now() + interval '3 seconds' WHERE id = $1 AND state = 'queued'""",
    "SELECT request FROM peer.task_payloads WHERE task_id = $1",
)
SETTLE = (
    """UPDATE peer.tasks SET state = 'completed', finished_at = now(), lease_expires_at = NULL,
       finish_reason = 'length', usage_prompt_tokens = 8, usage_cached_tokens = 0, usage_output_tokens = 1
       WHERE id = $1 AND state = 'in_progress'""",
    "UPDATE peer.task_payloads SET response = '" + RESPONSE + "' WHERE task_id = $1",
    """INSERT INTO peer.attempts (task_id, attempt, worker, claimed_at, outcome, output_tokens)
       VALUES ($1, 1, 'w', now(), 'completed', 1)""",
    """INSERT INTO peer.ledger (task_id, tenant_id, prompt_tokens, output_tokens, cost_usd_micros)
       VALUES ($1, 'tenant', 8, 1, 1)""",
)
