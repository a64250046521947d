"""What an engine does at each step, counted: its metrics, and the step times that its health is told from.

An engine calls `step` once a step, whatever the number of requests, so that a token costs nothing here.

Units: `*_s` seconds.
"""

from core.batch_size import StepTimes
from runtime import metrics

_WINDOW_STEPS = 4096  # kept until they are looked at


class StepMeter:
    """One engine's figures; outlives rebuilds of the engine."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._running = metrics.ENGINE_RUNNING.labels(model)
        self._waiting = metrics.ENGINE_WAITING.labels(model)
        self._fill = metrics.BATCH_FILL.labels(model)
        self._kv_usage = metrics.KV_USAGE.labels(model)
        self._queries = metrics.PREFIX_QUERIES.labels(model)
        self._hits = metrics.PREFIX_HITS.labels(model)
        self._preemptions = metrics.PREEMPTIONS.labels(model)
        self._prompt_tokens = metrics.ENGINE_TOKENS.labels(model, "prompt")
        self._output_tokens = metrics.ENGINE_TOKENS.labels(model, "output")
        self._steps = metrics.ENGINE_STEPS.labels(model)
        self._step_seconds = metrics.STEP_SECONDS.labels(model)
        self._max_seqs = 1
        self._last_at: float | None = None  # None: it was idle, the time until the next step says nothing
        self._window: dict[int, list[float]] = {}
        self.times = StepTimes()
        self.steps, self.busy_s, self.kv_usage = 0, 0.0, 0.0
        self.output_tokens = 0

    def started(self, max_num_seqs: int) -> None:
        """A new engine begins."""
        self._max_seqs = max_num_seqs
        self._last_at = None
        metrics.ENGINE_MAX_SEQS.labels(self._model).set(max_num_seqs)
        self.idle()

    def idle(self) -> None:
        """Nothing runs: the engine is empty or gone."""
        self._last_at, self.kv_usage = None, 0.0
        for gauge in (self._running, self._waiting, self._fill, self._kv_usage):
            gauge.set(0)

    def step(
        self,
        at: float,
        *,
        running: int,
        waiting: int,
        output_tokens: int,
        prompt_tokens: int = 0,
        preempted: int = 0,
        kv_usage: float = 0.0,
    ) -> None:
        """Count one step that ended at `at` (monotonic); `running` requests go on into the next one."""
        self._steps.inc()
        self.steps += 1
        self.kv_usage = kv_usage
        self._running.set(running)
        self._waiting.set(waiting)
        self._fill.set(running / self._max_seqs)
        self._kv_usage.set(kv_usage)
        if output_tokens:
            self._output_tokens.inc(output_tokens)
            self.output_tokens += output_tokens
        if prompt_tokens:
            self._prompt_tokens.inc(prompt_tokens)
        if preempted:
            self._preemptions.inc(preempted)
        if self._last_at is not None:
            took_s = at - self._last_at
            self._step_seconds.observe(took_s)
            self.busy_s += took_s
            self.times.add(running, took_s)
            # a step that also read prompts is as long as they are: it says nothing about the machine
            if not prompt_tokens and output_tokens:
                times = self._window.setdefault(output_tokens.bit_length(), [])
                if len(times) < _WINDOW_STEPS:
                    times.append(took_s)
        self._last_at = at if running else None

    def prefix(self, queries: int, hits: int) -> None:
        """Count prompt tokens looked up in the prefix cache and found there."""
        self._queries.inc(queries)
        self._hits.inc(hits)

    def take_window(self) -> dict[int, list[float]]:
        """Return the times of the steps since the last look, by the batch's size: key k holds 2^(k-1) to 2^k-1."""
        window, self._window = self._window, {}
        return window
