"""Where a task stands among its tenant's own: shorter first, the deadline in sight, and nobody overtaken for ever.

A task's rank is a moment, fixed at acceptance: `created_at` plus a delay that grows with its length. Whoever
arrives later than that moment can't overtake it, so ageing needs no timer and no update: time itself passes.
A deadline pulls the rank forward. The lowest rank goes first, which an index gives whatever the queue's depth.

Units: lengths in tokens of prompt and maximum output together; `*_s` seconds.

Source: shortest job first with linear ageing (a static key: Kleinrock's delay-dependent priority with one
slope); `storage.tasks` computes the same in SQL.
"""

STRETCH = 8.0  # a task may be overtaken for this many times the time that its own tokens take the model
UNMEASURED_S = 0.02  # delay a token while the model's rate is unknown
LEAST_S, MOST_S = 0.0002, 0.05  # bounds of the delay a token
MOST_DELAY_S = 300.0
SLACK = 0.5  # a deadline's share that may pass before the task goes before longer-dated ones


def rank_delay_s(total_tokens: int, deadline_s: float, tokens_per_s: float | None) -> float:
    """Return how long after its acceptance a task's rank is."""
    a_token_s = STRETCH / tokens_per_s if tokens_per_s else UNMEASURED_S
    delay_s = min(total_tokens * min(max(a_token_s, LEAST_S), MOST_S), MOST_DELAY_S)
    return min(delay_s, deadline_s * SLACK)
