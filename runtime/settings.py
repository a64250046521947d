"""Settings: the one reader of the environment.

Every setting is an environment variable `HEADRACE_<NAME>` or a file of that (lower-case) name in the folder
named by HEADRACE_SECRETS_DIR (default /run/secrets), so that a secret need not stand in the environment.

Units: `*_s` seconds, `*_ms` milliseconds, `*_bytes` bytes, `*_tokens` tokens.
"""

import os
import socket
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.digests import derive_key

SECRETS_DIR_VARIABLE = "HEADRACE_SECRETS_DIR"


class Settings(BaseSettings):
    """What every process of a deployment is told; each process reads the part it needs."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", extra="ignore", frozen=True)

    # Stores
    database_url: SecretStr  # postgresql://user:password@host:port/name
    broker_url: SecretStr  # redis://:password@host:port/0, Celery's queues
    streams_url: SecretStr  # redis://:password@host:port/1, chunks and results; may be another server
    key_prefix: str = "hr"  # of every Redis key: one server can carry several environments
    database_pool_size: int = Field(default=8, ge=1)  # connections a process

    # Secrets
    key_pepper: SecretStr  # keys are stored as HMAC-SHA256 under this; changing it voids every key
    # what hashes of texts in logs are keyed with, the same for api, control and workers; None: derived from the
    # pepper, which a worker need not have
    log_hash_key: SecretStr | None = None

    # API
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8000, ge=0, le=65535)
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    sync_start_s: float = Field(default=5.0, gt=0)  # a synchronous call not started by then gets 503
    sync_finish_s: float = Field(default=60.0, gt=0)  # a plain synchronous call, from its start
    sync_stream_s: float = Field(default=300.0, gt=0)  # a streamed synchronous call, from its start
    keepalive_s: float = Field(default=10.0, gt=0)  # comment frames on a silent stream
    memory_alarm_share: float = Field(default=0.7, gt=0, le=1)  # of a Redis server's maxmemory: 503 above it
    limits_fail: Literal["open", "closed"] = "open"  # without Redis: accept unchecked, or refuse with 503
    max_queued_tasks: int = Field(default=100_000, ge=1)  # per lane; over it submit is refused with 503
    max_queued_tokens: int | None = Field(default=None, ge=1)  # likewise; None: any number
    max_tenant_queued_tasks: int | None = Field(default=None, ge=1)  # per tenant and model; over it: 429
    max_tenant_queued_tokens: int | None = Field(default=None, ge=1)  # likewise

    # Tasks
    order: Literal["fair", "fifo"] = "fair"  # of the backlog; fifo: as it came, whoever's and however long
    task_ttl_s: float = Field(default=24 * 3600.0, gt=0)  # deadline of a task whose caller set none
    max_attempts: int = Field(default=3, ge=1)
    lease_s: float = Field(default=3.0, gt=0.2)  # a running task not renewed for this long is rescued
    stream_ttl_s: float = Field(default=3600.0, gt=0)  # of events and results in Redis, after the last event
    webhook_private: bool = False  # webhooks may go to private networks and over plain HTTP: development
    idempotency_s: float = Field(default=24 * 3600.0, ge=900)  # for how long an idempotency key is known
    retention_s: float = Field(default=30 * 24 * 3600.0, gt=0)  # of bodies in Postgres; rows stay
    undelivered_s: float = Field(default=24 * 3600.0, gt=0)  # of bodies not to be stored that nobody asks for

    # Files and batches
    files_url: str = "files"  # a folder, or an fsspec URL (s3://…); the same for api and control
    max_file_bytes: int = Field(default=512 * 1024 * 1024, ge=1024)
    max_batch_file_bytes: int = Field(default=200 * 1024 * 1024, ge=1024)  # a batch's input
    upload_s: float = Field(default=3600.0, gt=0)  # an upload not done by then is given up
    batch_live_tasks: int = Field(default=2000, ge=2)  # of one batch, queued or running at a time
    batch_file_ttl_s: float = Field(default=30 * 24 * 3600.0, gt=0)  # a batch's files, unless the caller says

    # Worker
    engine: Literal["vllm", "deterministic"] = "vllm"
    model: str = ""  # the model name a worker serves
    lanes: str = ""  # of these length classes (short,medium,long); empty: all
    worker_name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    max_num_seqs: int = Field(default=64, ge=1)  # the worker's slots
    reserved_slots: int | None = Field(
        default=None, ge=0
    )  # for interactive work; None: an eighth, at least 1
    max_preemptions: int = Field(
        default=3, ge=0
    )  # times a batch task may lend its slot to a person; 0: never
    interactive_first_token_s: float = Field(
        default=1.0, gt=0
    )  # in the worker; later: less batch work at once
    preemption_rest_s: float = Field(default=5.0, ge=0)  # who got a slot keeps it at least for this long
    max_running_long: int | None = Field(default=None, ge=1)  # at once; None: half of the slots
    max_running_medium: int | None = Field(default=None, ge=1)  # at once; None: no ceiling
    kv_cache_bytes: int = Field(default=1 << 30, ge=1 << 20)  # CPU engines; on GPUs see gpu_memory_share
    gpu_memory_share: float = Field(default=0.9, gt=0, le=1)
    max_batched_tokens: int | None = Field(default=None, ge=32)  # per engine step; None: vLLM's choice
    engine_args_file: Path | None = None  # JSON object of further AsyncEngineArgs
    engine_check_s: float = Field(default=5.0, gt=0)  # between two looks at the engine
    engine_stuck_s: float = Field(default=60.0, gt=0)  # no step for this long while requests run: rebuilt
    health_window_s: float = Field(default=10.0, gt=0)  # step times are compared window by window
    probe_s: float = Field(default=30.0, gt=0)  # between two known generations
    drain_s: float = Field(default=30.0, ge=0)  # running tasks may finish for this long after SIGTERM
    deterministic_step_s: float = Field(default=0.01, ge=0)  # the deterministic engine's time a token

    # Control
    tick_s: float = Field(default=1.0, gt=0)  # between two rounds of the rescue and outbox loops
    leader_lease_s: float = Field(default=5.0, gt=0)

    # Seeing inside
    metrics_host: str = "127.0.0.1"  # where workers and control serve /metrics; the API does on its own port
    metrics_port: int | None = Field(default=None, ge=0, le=65535)  # None: they serve none
    metrics_token: SecretStr | None = None  # bearer that opens every /metrics; None: to this machine only
    memory_bandwidth: float | None = Field(
        default=None, gt=0
    )  # bytes/s of the engine's memory; None: measured

    flower_url: str | None = Field(default=None, pattern=r"^https?://")  # linked from the API's page
    # where spans go: "console", http://host:4318/v1/traces, grpc://host:4317; empty: nowhere
    trace_to: str = Field(default="", pattern=r"^(console|(https?|grpcs?)://.+)?$")
    trace_share: float = Field(default=0.05, ge=0, le=1)  # of new traces; failed and slow tasks always go
    slow_share: float = Field(
        default=0.99, gt=0, lt=1
    )  # a task above this share of its lane's newest is slow

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def log_key(self) -> bytes:
        """The key of the hashes in logs."""
        secret = self.log_hash_key or self.key_pepper
        return derive_key(secret.get_secret_value().encode(), "log")


@cache
def settings() -> Settings:
    """The process's settings, read once. Raises: pydantic.ValidationError naming the variable."""
    folder = Path(os.environ.get(SECRETS_DIR_VARIABLE, "/run/secrets"))
    return Settings(_secrets_dir=folder if folder.is_dir() else None)
