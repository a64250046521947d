"""Structured logs: one JSON object a line on stdout. Never prompt or output text, never a secret."""

import logging
import sys

import orjson
import structlog

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
                structlog.processors.JSONRenderer(
                    lambda value, **_: orjson.dumps(value, default=str).decode()
                ),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in _TOLD_ELSEWHERE:
        logging.getLogger(noisy).setLevel(logging.WARNING)
