"""What vLLM's scheduler says at each step, kept as the engine's health."""

import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from workers.engine import EngineHealth


class HealthLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM's types aren't followed
    """Called by vLLM on the event loop after every step; must stay cheap."""

    def __init__(self, health: EngineHealth) -> None:
        self._health = health
        self._queries = self._hits = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Note one step."""
        health = self._health
        if iteration_stats is not None:
            health.last_step_at = time.monotonic()
            health.detail["preemptions"] = (
                health.detail.get("preemptions", 0) + iteration_stats.num_preempted_reqs
            )
        if scheduler_stats is None:
            return
        health.running = scheduler_stats.num_running_reqs
        health.waiting = scheduler_stats.num_waiting_reqs
        health.kv_cache_usage = scheduler_stats.kv_cache_usage
        prefix = scheduler_stats.prefix_cache_stats
        if prefix is not None and prefix.queries:
            self._queries += prefix.queries
            self._hits += prefix.hits
            health.detail["prefix_cache_queries"] = self._queries
            health.detail["prefix_cache_hits"] = self._hits

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
