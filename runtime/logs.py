"""Structured logs: one JSON object a line on stdout. Never prompt or output text, never a secret."""

import logging
import sys
from datetime import UTC, datetime

import orjson
import structlog

from core.secrets import HIDDEN, is_secret_name, scrub
from runtime.settings import Settings

# What these say of every message or request, one line a finished task says better.
_TOLD_ELSEWHERE = (
    "httpx",
    "httpcore",
    "asyncio",
    "kombu.pidbox",
    "celery.worker.strategy",
    "celery.app.trace",
)


def configure_logs(settings: Settings, *, process: str) -> None:
    """Send structlog's and the standard library's records to stdout in one form."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )

    def name_process(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        event["process"] = process
        return event

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                name_process,
                structlog.processors.JSONRenderer(_encode),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    for noisy in _TOLD_ELSEWHERE:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _encode(event: structlog.types.EventDict, **_: object) -> str:
    """Encode a line without the secrets that an exception or a dependency's message may have brought in."""
    shown = {name: HIDDEN if is_secret_name(name) else value for name, value in event.items()}
    return scrub(orjson.dumps(shown, default=str).decode())


def say_ready(process: str, **facts: str) -> None:
    """Write the line that the process serves now, whatever the log level: supervisors wait for it."""
    now = datetime.now(UTC).isoformat()
    line = {"event": "ready", "level": "info", "timestamp": now, "process": process, **facts}
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()
