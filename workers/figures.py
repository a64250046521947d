"""What a worker measures every other second beside its steps: memory, bandwidth, GPUs.

Units: bytes and bytes a second.
"""

import asyncio

import psutil

from runtime import metrics
from workers.engine import Engine
from workers.gpu import Gpus
from workers.session import Session

_EVERY_S = 2.0
_BASELINE_READINGS = 30
_ENOUGH_TOKENS = 512  # blocks that are partly full make fewer look dear


class Figures:
    """One worker's gauges."""

    def __init__(self, session: Session, engine: Engine, *, bandwidth: float | None) -> None:
        """`bandwidth`: bytes a second of the engine's memory, None where the operator did not say."""
        self._session, self._engine = session, engine
        self._model = engine.info.model
        self._gpus = Gpus.find() if engine.info.kind == "vllm" else None
        self._bandwidth = bandwidth or (
            self._gpus.bandwidth() if self._gpus else engine.info.memory_bandwidth
        )
        self._readings: list[float] = []
        self._seen = (0, 0.0)
        self.rss: dict[str, int] = {}

    async def keep(self) -> None:
        """Measure until cancelled."""
        metrics.WORKER_RUNNING.labels(self._model).set_function(lambda: len(self._session.running))
        while True:
            self.measure()
            await asyncio.sleep(_EVERY_S)

    def measure(self) -> None:
        """Look once."""
        info = self._engine.info
        metrics.WEIGHTS.labels(self._model).set(info.weight_bytes)
        metrics.KV_CAPACITY.labels(self._model).set(info.kv_tokens)
        self._kv()
        self._use_of_bandwidth()
        self._memory()
        for gpu in self._gpus.read() if self._gpus else ():
            metrics.GPU_MEMORY_USED.labels(str(gpu.index)).set(gpu.used_bytes)
            metrics.GPU_MEMORY_TOTAL.labels(str(gpu.index)).set(gpu.total_bytes)
            metrics.GPU_UTILIZATION.labels(str(gpu.index)).set(gpu.utilization)

    def _kv(self) -> None:
        info = self._engine.info
        tokens = sum(attempt.tokens_held for attempt in self._session.running.values())
        used = self._engine.meter.kv_usage * info.kv_tokens * info.kv_bytes_per_token
        if tokens < _ENOUGH_TOKENS or not used:
            return
        reading = used / tokens
        metrics.KV_BYTES_PER_TOKEN.labels(self._model).set(reading)
        if len(self._readings) < _BASELINE_READINGS:
            self._readings.append(reading)
            middle = sorted(self._readings)[len(self._readings) // 2]
            metrics.KV_BYTES_PER_TOKEN_BASELINE.labels(self._model).set(middle)

    def _use_of_bandwidth(self) -> None:
        meter, weights = self._engine.meter, self._engine.info.weight_bytes
        steps, busy_s = meter.steps - self._seen[0], meter.busy_s - self._seen[1]
        self._seen = (meter.steps, meter.busy_s)
        if self._bandwidth and weights:
            metrics.BANDWIDTH.labels(self._model).set(self._bandwidth)
            use = steps * weights / busy_s / self._bandwidth if busy_s > 0 else 0.0
            metrics.BANDWIDTH_USE.labels(self._model).set(use)

    def _memory(self) -> None:
        self.rss = {"worker": psutil.Process().memory_info().rss, "engine": 0}
        for pid in self._engine.pids():
            try:
                self.rss["engine"] += psutil.Process(pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
        for process, size in self.rss.items():
            metrics.WORKER_RSS.labels(self._model, process).set(size)
