"""What vLLM's scheduler says at each step: kept as the engine's health, and counted."""

import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from workers.engine import EngineHealth
from workers.meter import StepMeter
from workers.vllm_accounts import StepAccounts


class HealthLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM's types aren't followed
    """Called by vLLM on the event loop after every step; must stay cheap."""

    def __init__(self, health: EngineHealth, meter: StepMeter, accounts: StepAccounts) -> None:
        self._health, self._meter, self._accounts = health, meter, accounts

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Note one step."""
        health = self._health
        if scheduler_stats is not None:
            self._accounts.step()
            health.running = scheduler_stats.num_running_reqs
            health.waiting = scheduler_stats.num_waiting_reqs
            health.kv_cache_usage = scheduler_stats.kv_cache_usage
            prefix = scheduler_stats.prefix_cache_stats
            if prefix is not None and prefix.queries:
                self._meter.prefix(prefix.queries, prefix.hits)
        if iteration_stats is not None:
            health.last_step_at = time.monotonic()
            self._meter.step(
                health.last_step_at,
                running=health.running,
                waiting=health.waiting,
                output_tokens=iteration_stats.num_generation_tokens,
                prompt_tokens=iteration_stats.prompt_token_stats.computed,
                preempted=iteration_stats.num_preempted_reqs,
                kv_usage=health.kv_cache_usage or 0.0,
            )
        elif not health.running:
            self._meter.idle()

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
