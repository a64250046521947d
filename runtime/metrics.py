"""Every metric of the platform: name, unit, labels. Edges count; nothing below them knows of this file.

Cardinality is bounded: labels hold registered models, length classes, priorities, tenant classes (never
tenants) and words from the code. What comes from elsewhere goes through `bounded`.

Units stand in the names: `_seconds`, `_tokens`, `_bytes`, `_ratio` (0 to 1), `_usd_micros`. Each process
exposes what it counted itself: sum over instances. Gauges of the whole platform (backlog and the like) come
from the leading control process alone.

Source: prometheus.io/docs/practices/naming; names of engine figures follow vLLM's where there is one.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

from core.lanes import Lane

REGISTRY = CollectorRegistry()  # our own: vLLM registers and unregisters series in the default one
ProcessCollector(registry=REGISTRY)

LANE = ("model", "length_class", "priority")
TASK = (*LANE, "tenant_class")
_MOST_VALUES = 64  # of one label that is not a word of the code
OTHER = "other"


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    return Counter(f"headrace_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(f"headrace_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"headrace_{name}", text, labels, registry=REGISTRY, buckets=buckets)


# Buckets hold the thresholds of deploy/prometheus/alerts.yml as bounds, so that quantiles near them are exact.
_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_WAIT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200)
_STEP = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)

# -- tasks, counted where they are accepted and where they end

TASKS_ACCEPTED = _counter("tasks_accepted_total", "Tasks accepted.", TASK)
TASKS_ENDED = _counter(
    "tasks_ended_total",
    "Tasks ended, by whichever process; reason is the finish reason, or the failure reason.",
    (*TASK, "state", "reason"),
)
ATTEMPTS_ENDED = _counter(
    "attempts_ended_total",
    "Attempts ended; outcome is settled, handed_back or lost (found by the rescuer), reason the failure reason.",
    ("model", "outcome", "reason"),
)
TTFT = _histogram("ttft_seconds", "Acceptance to the first token sent.", TASK, _LATENCY)
TPOT = _histogram("tpot_seconds", "Mean time between output tokens of a request, by the engine.", TASK, _STEP)
QUEUE_WAIT = _histogram("queue_wait_seconds", "Acceptance to the first claim.", TASK, _WAIT)
END_TO_END = _histogram("end_to_end_seconds", "Acceptance to the end of the task.", TASK, _LATENCY)
PREFILL = _histogram("prefill_seconds", "Engine's admission to the first token.", TASK, _LATENCY)
TASK_TOKENS = _counter(
    "task_tokens_total",
    "Tokens of ended tasks; kind is prompt (cached ones included), cached or output.",
    (*TASK, "kind"),
)
SLOW_TASKS = _counter(
    "slow_tasks_total", "Tasks above the percentile of their lane, by what made them slow.", (*LANE, "cause")
)

# -- money, as written to the ledger

LEDGER_COST = _counter("ledger_cost_usd_micros_total", "Cost charged, micro-USD.", TASK)
LEDGER_TOKENS = _counter("ledger_tokens_total", "Tokens charged, by kind.", (*TASK, "kind"))

# -- the edge

HTTP_REQUESTS = _counter(
    "http_requests_total", "Requests answered, by route template.", ("route", "method", "status")
)
HTTP_SECONDS = _histogram(
    "http_request_seconds",
    "Request to the first byte of the answer.",
    ("route", "method"),
    _LATENCY,
)
STREAMS_OPEN = _gauge("streams_open", "Tasks that are followed live by this process.")
LIMITS_UNCHECKED = _counter(
    "limits_unchecked_total", "Requests accepted without a look at their rate limits: Redis was away."
)
REFUSALS = _counter("refusals_total", "Requests refused, by error code.", ("reason",))
WEBHOOKS = _counter(
    "webhook_deliveries_total",
    "Webhook deliveries tried; outcome is delivered, retried or dead.",
    ("outcome",),
)

# -- queues, by the leading control process

BACKLOG = _gauge("backlog_tasks", "Queued tasks.", LANE)
IN_FLIGHT = _gauge("in_flight_tasks", "Running tasks.", LANE)
OLDEST_WAIT = _gauge("oldest_queued_seconds", "Age of the task that waits longest.", LANE)
OUTBOX_TASKS = _gauge("outbox_tasks", "Queued tasks that the broker is not known to have.")
OUTBOX_LAG = _gauge("outbox_lag_seconds", "Age of the oldest of those.")
CONTROL_LEADING = _gauge("control_leading", "1 in the control process that leads.")
CONTROL_ACTIONS = _counter(
    "control_actions_total",
    "What control loops did, such as leases rescued (loop=rescue, action=requeued).",
    ("loop", "action"),
)
CONTROL_TICKS = _counter(
    "control_ticks_total", "Rounds of a loop, by outcome (ok, failed).", ("loop", "outcome")
)
CONTROL_TICK_SECONDS = _histogram("control_tick_seconds", "Length of a round.", ("loop",), _STEP)

# -- workers

CLAIMS = _counter(
    "claims_total",
    "Messages taken; refused: a duplicate, cancelled or not to be run here.",
    ("model", "outcome"),
)
WORKER_RUNNING = _gauge("worker_running_tasks", "Attempts that run in this worker.", ("model",))
WORKER_STATE = _gauge("worker_state", "1 for the state that the worker is in.", ("model", "state"))
WORKER_HEALTH = _gauge("worker_health", "1 for the health that the worker is in.", ("model", "health"))
WORKER_TRANSITIONS = _counter(
    "worker_transitions_total", "Changes of a worker's health, by the new one.", ("model", "health", "reason")
)
PROBES = _counter("worker_probes_total", "Known generations tried, by outcome.", ("model", "outcome"))
PROBE_SECONDS = _histogram("worker_probe_seconds", "Time a known generation took.", ("model",), _LATENCY)
WORKER_RSS = _gauge(
    "worker_rss_bytes",
    "Resident memory, of the worker's own process and of its engine's.",
    ("model", "process"),
)
ENGINE_REBUILDS = _counter(
    "engine_rebuilds_total", "Engines built again after they died or hung.", ("model",)
)

# -- engines: from vLLM's stat logger at each step

ENGINE_RUNNING = _gauge("engine_running_requests", "Requests in the engine's batch.", ("model",))
ENGINE_WAITING = _gauge("engine_waiting_requests", "Requests that wait inside the engine.", ("model",))
ENGINE_MAX_SEQS = _gauge("engine_max_num_seqs", "Requests that the engine can run at once.", ("model",))
BATCH_FILL = _gauge("engine_batch_fill_ratio", "Running requests ÷ max_num_seqs.", ("model",))
KV_USAGE = _gauge("engine_kv_usage_ratio", "Share of the KV cache's blocks in use.", ("model",))
KV_CAPACITY = _gauge("engine_kv_capacity_tokens", "Tokens that the KV cache holds.", ("model",))
KV_BYTES_PER_TOKEN = _gauge(
    "engine_kv_bytes_per_token", "KV cache in use ÷ tokens of the running requests.", ("model",)
)
KV_BYTES_PER_TOKEN_BASELINE = _gauge(
    "engine_kv_bytes_per_token_baseline", "What this worker's usage was when it was new.", ("model",)
)
PREFIX_QUERIES = _counter("engine_prefix_query_tokens_total", "Prompt tokens looked up.", ("model",))
PREFIX_HITS = _counter("engine_prefix_hit_tokens_total", "Of those, found in the prefix cache.", ("model",))
PREEMPTIONS = _counter("engine_preemptions_total", "Requests pushed out of the batch for memory.", ("model",))
BATCH_SIZE = _gauge("batch_size_limit", "Batch requests that may run at once.", ("model",))
SLOTS_LENT = _counter("slots_lent_total", "Times a batch task gave its slot to a person.", ("model",))
ENGINE_TOKENS = _counter(
    "engine_tokens_total", "Tokens computed; kind is prompt (prefill) or output.", ("model", "kind")
)
ENGINE_STEPS = _counter("engine_steps_total", "Steps of the engine.", ("model",))
STEP_SECONDS = _histogram("engine_step_seconds", "Time from one step to the next.", ("model",), _STEP)
WEIGHTS = _gauge("engine_weight_bytes", "Weights that each step reads.", ("model",))
BANDWIDTH = _gauge("engine_memory_bandwidth_bytes", "Bytes a second that the memory can deliver.", ("model",))
BANDWIDTH_USE = _gauge(
    "engine_bandwidth_utilization_ratio",
    "Weights read a second (steps × weights) ÷ the memory's bandwidth, over the last seconds of work.",
    ("model",),
)
GPU_MEMORY_USED = _gauge("gpu_memory_used_bytes", "Memory in use.", ("gpu",))
GPU_MEMORY_TOTAL = _gauge("gpu_memory_total_bytes", "Memory there is.", ("gpu",))
GPU_UTILIZATION = _gauge("gpu_utilization_ratio", "Share of time a kernel ran.", ("gpu",))

_known: dict[str, set[str]] = {}


def bounded(label: str, value: str | None) -> str:
    """Return a label's value, or "other" once the process has seen too many different ones."""
    text = value or "none"
    known = _known.setdefault(label, set())
    if text in known:
        return text
    if len(known) >= _MOST_VALUES:
        return OTHER
    known.add(text)
    return text


def count_accepted(lane: Lane, tenant_class: str, tasks: int = 1) -> None:
    """Count accepted tasks of one lane."""
    TASKS_ACCEPTED.labels(
        lane.model, lane.length_class, lane.priority, bounded("tenant_class", tenant_class)
    ).inc(tasks)


def render(accept: str = "") -> tuple[bytes, str]:
    """Return the process's metrics and their content type; OpenMetrics, with exemplars, where asked for."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type


def values() -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample of this process by name and sorted labels, for commands and tests."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
    }
