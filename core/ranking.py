"""Where a task stands among its tenant's own: the deadline in sight, and nobody overtaken for ever.

Shorter ones go first, so that the mean wait is the least; but of batch work the longer ones, so that the last of
a file do not keep a few slots busy while the others are idle: who waits for a file waits for its last line.

A task's rank is a moment, fixed at acceptance: `created_at` plus a delay that grows with its length (that of
batch work shrinks). Whoever arrives later than that moment can't overtake it, so ageing needs no timer and no
update: time itself passes. A deadline pulls the rank forward. The lowest rank goes first, which an index gives
whatever the queue's depth.

An output token takes a slot for a step of its own, a prompt token for a small part of one: it counts `OUTPUT_WEIGHT`
times, so that the order is that of the time a task will take rather than of its size.

Units: tokens; `*_s` seconds.

Source: shortest job first with linear ageing (a static key: Kleinrock's delay-dependent priority with one
slope); longest processing time first (Graham 1969) for the least makespan; `storage.tasks` computes the same in SQL.
"""

from core.lanes import Priority

OUTPUT_WEIGHT = 4  # as prices have it; engines differ, and so little hangs on it that no measurement is owed
STRETCH = 8.0  # a task may be overtaken for this many times the time that its own tokens take the model
UNMEASURED_S = 0.02  # delay a token while the model's rate is unknown
LEAST_S, MOST_S = 0.0002, 0.05  # bounds of the delay a token
MOST_DELAY_S = 300.0
SLACK = 0.5  # a deadline's share that may pass before the task goes before longer-dated ones


def rank_delay_s(
    prompt_tokens: int,
    max_output_tokens: int,
    deadline_s: float,
    tokens_per_s: float | None,
    priority: Priority = Priority.STANDARD,
) -> float:
    """Return how long after its acceptance a task's rank is."""
    length = prompt_tokens + OUTPUT_WEIGHT * max_output_tokens
    a_token_s = STRETCH / tokens_per_s if tokens_per_s else UNMEASURED_S
    most_s = min(MOST_DELAY_S, deadline_s * SLACK)
    delay_s = min(length * min(max(a_token_s, LEAST_S), MOST_S), most_s)
    return most_s - delay_s if priority is Priority.BATCH else delay_s
